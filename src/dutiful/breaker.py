"""A breaker as the code declares it."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeVar, cast

from dutiful.context import CURRENT, Context
from dutiful.core.breaker import BreakerPolicy
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.payload import check_name
from dutiful.kind import Kind
from dutiful.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


class Aside:
    """The kind whose handler this process runs, if it is one of those that a worker keeps for process=True."""

    kind: ClassVar[Kind[Any, Any] | None] = None


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """What app.breaker(…) returns; as a decorator it puts each call of a function under the breaker.

    Outside of a job the function is called as it is: only jobs ask the fleet. A job's own process cannot: there, its
    kind has to declare the breaker.
    """

    name: str
    failures: int | None = None  # None: as the settings say
    open_for: timedelta | None = None
    probes: int = 1

    def policy(self, settings: Settings) -> BreakerPolicy:
        return BreakerPolicy(
            failures=settings.breaker_failures if self.failures is None else self.failures,
            open_for=settings.breaker_open_for if self.open_for is None else self.open_for,
            probes=self.probes,
        )

    def __call__(self, function: F) -> F:
        if isinstance(function, Kind):
            raise UsageError(
                f"breaker {self.name} stands above @app.job: say @app.job(breaker={self.name!r}), or let it stand below"
            )
        if not callable(function):
            raise UsageError(f"breaker {self.name} got {function!r:.80}: it decorates a function, plain or async")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"breaker {self.name} cannot tell when a generator has ended: use ctx.breaker inside it")
        return cast(F, self._over_async(function) if inspect.iscoroutinefunction(function) else self._over(function))

    def _over_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            context = self._context(function)
            if context is None:
                return await function(*args, **kwargs)
            async with context.breaker(self.name):
                return await function(*args, **kwargs)

        return guarded

    def _over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            context = self._context(function)
            if context is None:
                return function(*args, **kwargs)
            with context.breaker(self.name):
                return function(*args, **kwargs)

        return guarded

    def _context(self, function: Callable[..., Any]) -> Context | None:
        """Of the job that calls it; None if no job does, or one for which somebody else has asked."""
        if Aside.kind is not None and Aside.kind.breaker != self.name:
            raise UsageError(
                f"{function.__qualname__} is under the breaker {self.name}, which the process of a job cannot ask: "
                f"declare it on the kind, @app.job(process=True, breaker={self.name!r})"
            )
        return CURRENT.get()


def read_breaker(name: str, failures: int | None, open_for: Duration | None, probes: int) -> BreakerSpec:
    """Everything about it checked now; what is left out is read from the settings when a worker starts."""
    given = None if open_for is None else duration(open_for, "open_for")
    spec = BreakerSpec(check_name(name, "breaker"), failures, given, probes)
    spec.policy(Settings())
    return spec


def name_of(breaker: BreakerSpec | str | None) -> str | None:
    """The breaker that a kind declares; it may be declared itself later, or not at all."""
    if breaker is None or isinstance(breaker, BreakerSpec):
        return None if breaker is None else breaker.name
    return check_name(breaker, "breaker")


def breaker_policy(settings: Settings) -> BreakerPolicy:
    """Of breakers that the code does not declare."""
    return BreakerPolicy(failures=settings.breaker_failures, open_for=settings.breaker_open_for)
