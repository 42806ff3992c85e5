"""Pipelines: jobs that run through named phases and remember which are completed."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeVar, overload

from dutiful.context import Context
from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.core.json import check_name
from dutiful.core.retry.policy import Retry
from dutiful.kind import Declaration, Enqueuer, Kind, Mode, Phase
from dutiful.options import read_retry, read_timeout
from dutiful.payload.signature import JointSignature, Signature, check_function

F = TypeVar("F", bound=Callable[..., Any])
OnRetry = Literal["resume", "restart"]
When = Callable[[Context], Any]


class Pipeline(Kind[..., Any]):
    """A kind made of phases, run in the order of their declaration; its result is that of the last phase.

    `on_retry`: "resume" skips completed phases and keeps their results, "restart" begins with the first phase.
    """

    signature: JointSignature

    def __init__(self, enqueuer: Enqueuer, declared: Declaration, on_retry: OnRetry) -> None:
        name = declared.name
        if on_retry not in ("resume", "restart"):
            raise UsageError(f'pipeline {name}: on_retry {on_retry!r} must be "resume" or "restart"')
        super().__init__(self._refuse, enqueuer, declared, Mode.PHASES, JointSignature(name))
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
        """Makes a function the next phase; it stays a plain function.

        A parameter named after an earlier phase gets its result. `when`, a quick plain function, decides whether it
        runs or is skipped. If an `optional` phase fails finally, the pipeline continues and ends as
        completed_with_errors; without its own `retry` it is tried once.
        """

        def register(function: F) -> F:
            chosen = check_function(function, name)
            where = f"pipeline {self.name}, phase {chosen}"
            earlier = [phase.name for phase in self.phases]
            if self.signature.used:
                raise UsageError(
                    f"{where}: the pipeline is in use already; declare all phases before the first enqueue"
                )
            if check_name(chosen, "phase") in earlier:
                raise UsageError(f"{where}: there is one of that name already; give one of them another: phase(name=…)")
            if retry is not None and not self.resumes:
                raise UsageError(
                    f'{where}: a retry of its own needs on_retry="resume", because restart begins with the first'
                )
            if when is not None and (not callable(when) or inspect.iscoroutinefunction(when)):
                raise UsageError(f"{where}: when must be a plain function of the context, as in when=lambda ctx: …")
            signature = Signature(function, f"{self.name}.{chosen}", earlier)
            mode = Mode.LOOP if inspect.iscoroutinefunction(function) else Mode.THREAD
            limit, own_retry = read_timeout(timeout), read_retry(retry)
            phase = Phase(chosen, len(earlier), function, signature, mode, limit, own_retry, when, optional)
            self.phases = (*self.phases, phase)
            self.signature = JointSignature(self.name, [(p.name, p.signature) for p in self.phases])
            return function

        return register if function is None else register(function)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"pipeline {self.name} cannot be called; enqueue it, or call one of its phases")


__all__ = ["Phase", "Pipeline"]
