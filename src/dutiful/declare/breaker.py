"""A breaker as the code declares it."""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeVar, cast

from dutiful.context import CURRENT, BreakerBlock
from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.json import check_name
from dutiful.kind import Kind
from dutiful.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


class JobProcess:
    """The kind whose handler a child process runs, for kinds with process=True."""

    kind: ClassVar[Kind[Any, Any] | None] = None


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """What app.breaker(…) returns; as a decorator it puts each call of a function under the breaker.

    Outside of a job the function is called directly. A child process cannot reach the breaker, so its kind has to
    declare it.
    """

    name: str
    failures: int | None = None  # None: as in the settings
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
                f"breaker {self.name} stands above @app.job: write @app.job(breaker={self.name!r}), or put it below"
            )
        if not callable(function):
            raise UsageError(f"breaker {self.name} got {function!r:.80}: it decorates a function, plain or async")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"breaker {self.name} cannot see when a generator has ended: use ctx.breaker inside it")

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def protected(*args: Any, **kwargs: Any) -> Any:
                async with self._block(function):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def protected(*args: Any, **kwargs: Any) -> Any:
                with self._block(function):
                    return function(*args, **kwargs)

        return cast(F, protected)

    def _block(self, function: Callable[..., Any]) -> "BreakerBlock | nullcontext[None]":
        """The running job's block of this breaker; without effect outside of jobs, and in a job's own process, because
        its worker has entered the breaker."""
        if JobProcess.kind is not None and JobProcess.kind.breaker != self.name:
            raise UsageError(
                f"{function.__qualname__} is under the breaker {self.name}, which the process of a job cannot ask: "
                f"declare it on the kind, @app.job(process=True, breaker={self.name!r})"
            )
        context = CURRENT.get()
        return nullcontext() if context is None else context.breaker(self.name)


def read_breaker(name: str, failures: int | None, open_for: Duration | None, probes: int) -> BreakerSpec:
    """Checks everything now; what is left out is read from the settings when a worker starts."""
    given = None if open_for is None else duration(open_for, "open_for")
    spec = BreakerSpec(check_name(name, "breaker"), failures, given, probes)
    spec.policy(Settings())
    return spec


def name_of(breaker: BreakerSpec | str | None) -> str | None:
    """The name of a kind's breaker; the breaker itself may be declared later, or not at all."""
    if isinstance(breaker, BreakerSpec):
        return breaker.name
    return None if breaker is None else check_name(breaker, "breaker")


def breaker_policy(settings: Settings) -> BreakerPolicy:
    """The policy of breakers that the code does not declare."""
    return BreakerPolicy(failures=settings.breaker_failures, open_for=settings.breaker_open_for)
