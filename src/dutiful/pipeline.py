"""A pipeline: one job that runs through named phases and remembers how far it came."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NoReturn, TypeVar, overload

from dutiful.context import Context
from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.core.payload import check_name
from dutiful.core.retry import Retry
from dutiful.core.rules import Rules
from dutiful.core.settle import Policy
from dutiful.kind import Enqueuer, Kind, Mode, Phase
from dutiful.options import Options, read_retry, read_timeout
from dutiful.signature import JointSignature, Signature, check_function

F = TypeVar("F", bound=Callable[..., Any])
OnRetry = Literal["resume", "restart"]
When = Callable[[Context], Any]


class Pipeline(Kind[..., Any]):
    """A kind made of phases, run in the order in which they are declared; its result is that of the last one.

    `on_retry`: "resume" passes by what was completed and keeps its results, "restart" begins with the first phase.
    """

    signature: JointSignature

    def __init__(
        self,
        enqueuer: Enqueuer,
        *,
        name: str,
        queue: str,
        priority: int,
        policy: Policy,
        timeout: timedelta | None,
        options: Options,
        on_retry: OnRetry = "resume",
        category: str | None = None,
        rules: Rules | None = None,
        breaker: str | None = None,
    ) -> None:
        if on_retry not in ("resume", "restart"):
            raise UsageError(f'pipeline {name}: on_retry {on_retry!r} must be "resume" or "restart"')
        super().__init__(
            self._refuse,
            enqueuer,
            name=name,
            queue=queue,
            priority=priority,
            policy=policy,
            timeout=timeout,
            mode=Mode.PHASES,
            options=options,
            signature=JointSignature(name),
            category=category,
            rules=rules,
            breaker=breaker,
        )
        self.resumes = on_retry == "resume"
        self.__name__ = self.__qualname__ = name
        self.__doc__ = type(self).__doc__

    def __repr__(self) -> str:
        return f"<pipeline {self.name}>"

    @overload
    def phase(self, function: F, /) -> F: ...
    @overload
    def phase(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | str | None = None,
        when: When | None = None,
        optional: bool = False,
    ) -> Callable[[F], F]: ...
    def phase(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | str | None = None,
        when: When | None = None,
        optional: bool = False,
    ) -> Any:
        """Make a function the next phase; it stays a plain function.

        A parameter named after an earlier phase gets that one's result. `when`, a quick plain function, says whether it
        is run or skipped. If an `optional` one fails for good, the pipeline goes on and ends as completed_with_errors;
        without a `retry` of its own it is tried once.
        """

        def register(function: F) -> F:
            own = check_function(function)
            self._add(function, name or own, timeout, retry, when, optional)
            return function

        return register if function is None else register(function)

    def _add(
        self,
        function: Callable[..., Any],
        name: str,
        timeout: Duration | None,
        retry: Retry | str | None,
        when: When | None,
        optional: bool,
    ) -> None:
        where = f"pipeline {self.name}, phase {name}"
        earlier = [phase.name for phase in self.phases]
        if self.signature.used:
            raise UsageError(f"{where}: the pipeline is in use already; declare all phases before the first enqueue")
        if check_name(name, "phase") in earlier:
            raise UsageError(f"{where}: there is one of that name already; give one of them another: phase(name=…)")
        if retry is not None and not self.resumes:
            raise UsageError(
                f'{where}: a retry of its own needs on_retry="resume", for a restart begins with the first phase'
            )
        if when is not None and (not callable(when) or inspect.iscoroutinefunction(when)):
            raise UsageError(f"{where}: when must be a plain function of the context, as in when=lambda ctx: …")
        phase = Phase(
            name,
            len(earlier),
            function,
            Signature(function, f"{self.name}.{name}", earlier),
            Mode.LOOP if inspect.iscoroutinefunction(function) else Mode.THREAD,
            read_timeout(timeout),
            read_retry(retry),
            when,
            optional,
        )
        self.phases = (*self.phases, phase)
        self.signature = JointSignature(self.name, [(p.name, p.signature) for p in self.phases])

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"pipeline {self.name} cannot be called; enqueue it, or call one of its phases")


__all__ = ["Phase", "Pipeline"]
