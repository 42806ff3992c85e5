"""A kind of job: a function, its typed payload, its policy."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar
from uuid import UUID

import msgspec

from dutiful.context import CURRENT, Context
from dutiful.core.duration import Duration
from dutiful.core.endpoint import check_url
from dutiful.core.errors import UsageError
from dutiful.core.job import JobRecord, NewJob
from dutiful.core.payload import check_name, encode
from dutiful.core.retry import Retry
from dutiful.core.settle import Policy
from dutiful.core.webhook import check_secrets
from dutiful.options import Options, check_priority, read_options
from dutiful.signature import Schema, Signature

if TYPE_CHECKING:
    from dutiful.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Mode(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"  # async functions: on the worker's event loop
    THREAD = "thread"  # plain functions: in a thread
    PROCESS = "process"  # CPU work: in a process that can be killed; what it enqueues inherits nothing
    PHASES = "phases"  # a pipeline: each of its phases on the loop or in a thread


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of a pipeline."""

    name: str
    position: int  # the first is 0
    function: Callable[..., Any]
    signature: Signature
    mode: Mode
    timeout: timedelta | None = None
    retry: Retry | None = None  # instead of the pipeline's
    when: Callable[[Context], Any] | None = None
    optional: bool = False


class Handle(Protocol[R_co]):
    """A job that was enqueued."""

    @property
    def id(self) -> UUID: ...
    @property
    def public_id(self) -> str: ...
    @property
    def created(self) -> bool:
        """False if a job of the same id or unique key was there already: then this is that one."""
        ...

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job is final; JobFailed, JobCancelled or ResultTimeout if there is no result."""
        ...

    async def cancel(self, reason: str = "cancelled") -> bool: ...

    async def record(self) -> JobRecord:
        """The job with where it stands now."""
        ...


class SyncHandle(Protocol[R_co]):
    @property
    def id(self) -> UUID: ...
    @property
    def public_id(self) -> str: ...
    @property
    def created(self) -> bool: ...

    def result(self, timeout: Duration | None = None) -> R_co: ...

    def cancel(self, reason: str = "cancelled") -> bool: ...

    def record(self) -> JobRecord: ...


class Enqueuer(Protocol):
    """What a kind needs of its app."""

    @property
    def settings(self) -> "Settings": ...

    def new_id(self) -> UUID: ...

    async def submit(self, job: NewJob, within: Any) -> Handle[Any]: ...

    async def submit_many(self, jobs: list[NewJob], within: Any) -> list[Handle[Any]]: ...

    def submit_sync(self, job: NewJob, within: Any) -> SyncHandle[Any]: ...

    def submit_many_sync(self, jobs: list[NewJob], within: Any) -> list[SyncHandle[Any]]: ...


class Kind(Generic[P, R]):
    """A registered function; call it to run it here and now, `enqueue` it to have a worker run it."""

    phases: tuple[Phase, ...] = ()  # of a pipeline

    def __init__(
        self,
        function: Callable[..., Any],
        enqueuer: Enqueuer,
        *,
        name: str,
        queue: str,
        priority: int,
        policy: Policy,
        timeout: timedelta | None,
        mode: Mode,
        options: Options,
        signature: Schema | None = None,
    ) -> None:
        self.function = function
        self.name = check_name(name, "kind")
        self.queue = check_name(queue, "queue")
        self.priority = check_priority(priority)
        self.policy = policy
        self.timeout = timeout
        self.mode = mode
        self._enqueuer = enqueuer
        self._defaults = options
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.signature = signature or Signature(function, name)
        if mode is Mode.PROCESS and self.signature.context is not None:
            raise UsageError(
                f"kind {name} runs in a process of its own, which has no context; leave {self.signature.context} out"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<kind {self.name}>"

    def options(self, **changes: Any) -> "Request[P, R]":
        """How this one job is to differ: priority, run_at, delay, unique, tenant, within, …"""
        return Request(self, read_options(self._defaults, changes))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a job; when this returns, it survives a crash."""
        return await Request[P, R](self, self._defaults).enqueue(*args, **kwargs)

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        """Store a job for each payload, all or none, in one transaction."""
        return await Request[P, R](self, self._defaults).enqueue_many(payloads)

    @property
    def sync(self) -> "SyncRequest[P, R]":
        """The same for blocking code: send_email.sync.enqueue(…)."""
        return SyncRequest(self, self._defaults)

    def prepare(self, options: Options, payload: Mapping[str, Any]) -> NewJob:
        """A checked job, ready to be stored."""
        return self.prepare_many(options, (payload,))[0]

    def prepare_many(self, options: Options, payloads: Iterable[Mapping[str, Any]]) -> list[NewJob]:
        """Checked jobs; what they are enqueued from inside of gives them correlation and parent."""
        limit = self._enqueuer.settings.payload_limit
        current = CURRENT.get()
        correlation_id, parent_id, tenant = options.correlation_id, options.parent_id, options.tenant
        if current is not None:
            correlation_id = correlation_id or current.correlation_id
            parent_id = parent_id or current.job_id
            tenant = tenant or current.tenant
        subject = options.subject
        shared = (
            self.priority if options.priority is None else options.priority,
            options.max_attempts or self.policy.retry.max_attempts,
            options.run_at,
            options.delay,
            tenant,
            correlation_id,
            parent_id,
            options.retry_of,
            None if subject is None else encode(dict(subject), what="subject", limit=limit),
            options.created_by,
            _json(self.details(options)),
            options.unique,
            options.depends_on,
        )
        check, new_id = self.signature.encode, self._enqueuer.new_id
        name, queue = self.name, options.queue or self.queue
        return [NewJob(options.id or new_id(), name, queue, check(payload, limit), *shared) for payload in payloads]

    def details(self, options: Options) -> dict[str, Any]:
        """What is stored with a job for those who do not have its kind: NewJob.options."""
        details: dict[str, Any] = {}
        if self.phases:
            details["phases"] = [phase.name for phase in self.phases]
        if options.webhook is not None:
            settings = self._enqueuer.settings
            check_secrets(settings.webhook_secrets, "option webhook")
            url = check_url(options.webhook.url, settings.webhook_networks)
            details["webhook"] = {"url": url, "states": options.webhook.states}
        return details


def _json(details: dict[str, Any]) -> str | None:
    return msgspec.json.encode(details).decode() if details else None


class _Request(Generic[P, R]):
    __slots__ = ("_kind", "_options")

    def __init__(self, kind: Kind[P, R], options: Options) -> None:
        self._kind = kind
        self._options = options

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        return self._kind.prepare(self._options, self._kind.signature.bind(args, kwargs))

    def _prepare_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[NewJob]:
        if self._options.unique is not None or self._options.id is not None:
            raise UsageError("enqueue_many with one unique key or id for all makes no sense; enqueue them one by one")
        return self._kind.prepare_many(self._options, payloads)


class Request(_Request[P, R]):
    """A kind with options, ready to be enqueued."""

    __slots__ = ()

    def options(self, **changes: Any) -> "Request[P, R]":
        return Request(self._kind, read_options(self._options, changes))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        return await self._kind._enqueuer.submit(self._prepare(args, kwargs), self._options.within)

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        return await self._kind._enqueuer.submit_many(self._prepare_many(payloads), self._options.within)

    @property
    def sync(self) -> "SyncRequest[P, R]":
        return SyncRequest(self._kind, self._options)


class SyncRequest(_Request[P, R]):
    """The blocking form."""

    __slots__ = ()

    def options(self, **changes: Any) -> "SyncRequest[P, R]":
        return SyncRequest(self._kind, read_options(self._options, changes))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        return self._kind._enqueuer.submit_sync(self._prepare(args, kwargs), self._options.within)

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[SyncHandle[R]]:
        return self._kind._enqueuer.submit_many_sync(self._prepare_many(payloads), self._options.within)
