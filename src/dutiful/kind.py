"""A kind of job: a function, its typed payload, its policy."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from dutiful.context import CURRENT, Context
from dutiful.core.endpoint import check_url
from dutiful.core.errors import FieldError, PayloadInvalid, UsageError
from dutiful.core.job import NewJob
from dutiful.core.payload import check_name, encode
from dutiful.core.retry import Retry
from dutiful.core.rules import Rules
from dutiful.core.settle import Policy
from dutiful.core.webhook import check_secrets
from dutiful.handle import Enqueuer, Handle, SyncHandle
from dutiful.options import NEVER, USUAL_RETRY, Options, check_priority, read_options
from dutiful.ruling import Accepted, Checked, Ruling, Upgrade
from dutiful.settings import Settings
from dutiful.signature import Schema, Signature

P = ParamSpec("P")
R = TypeVar("R")


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
        category: str | None = None,
        rules: Rules | None = None,
        breaker: str | None = None,
    ) -> None:
        self.function = function
        self.name = check_name(name, "kind")
        self.queue = check_name(queue, "queue")
        self.priority = check_priority(priority)
        self._policy = policy
        self._timeout = timeout
        self._usual: tuple[Settings, Policy] | None = None
        self.mode = mode
        self.category = category
        self.rules = rules
        self.breaker = breaker  # while it is open, jobs of this kind wait
        self._ruling = None if rules is None else Ruling(self.name, rules, lambda: self.signature)
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

    @property
    def policy(self) -> Policy:
        """Its own; of one that declares no retry, with the one of the settings."""
        if self._policy.retry is not USUAL_RETRY:
            return self._policy
        settings = self._enqueuer.settings
        if self._usual is None or self._usual[0] is not settings:
            self._usual = settings, msgspec.structs.replace(self._policy, retry=settings.retry)
        return self._usual[1]

    @property
    def timeout(self) -> timedelta | None:
        """How long one attempt may take: its own, or what the settings say for its queue; None is without limit."""
        if self._timeout is None:
            return self._enqueuer.settings.timeout_of(self.queue)
        return None if self._timeout is NEVER else self._timeout

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

    def upgrade(self, version: str) -> Callable[[Upgrade], Upgrade]:
        """Make a function (payload -> payload) bring those of an older version to the next, before they are run."""
        if self._ruling is None:
            raise UsageError(f"kind {self.name} has no rules, so no versions: give it some, Rules(versions=[…])")
        ruling = self._ruling

        def register(function: Upgrade) -> Upgrade:
            ruling.add_upgrade(version, function)
            return function

        return register

    def check(self, payload: Mapping[str, Any]) -> Checked:
        """A payload as it is stored, checked by its rules and the handler's signature, and what it says of its job."""
        if self._ruling is not None:
            return self._ruling.check(payload)
        return Checked(self.signature.encode(payload, self._enqueuer.settings.payload_limit))

    def problems(self, payload: Mapping[str, Any]) -> list[FieldError]:
        """Everything that is wrong with a payload; nothing, if it can be enqueued."""
        try:
            self.check(payload)
        except PayloadInvalid as error:
            return list(error.errors)
        return []

    def check_tenant(self, tenant: str | None) -> None:
        """PayloadInvalid if a job has to have a tenant, and this one has none: SQL does not know of that setting."""
        if tenant is None and self._enqueuer.settings.tenants:
            raise _no_tenant(self.name)

    def accept(self, payload: str, tenant: str | None) -> Accepted:
        """What the handler gets of a stored payload; PayloadInvalid if that breaks the kind's rules."""
        return Accepted(payload, payload) if self._ruling is None else self._ruling.accept(payload, tenant)

    def prepare(self, options: Options, payload: Mapping[str, Any]) -> NewJob:
        """A checked job, ready to be stored."""
        return self.prepare_many(options, (payload,))[0]

    def prepare_many(self, options: Options, payloads: Iterable[Mapping[str, Any]]) -> list[NewJob]:
        """Checked jobs; what they are enqueued from inside of gives them correlation and parent."""
        settings = self._enqueuer.settings
        limit = settings.payload_limit
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
        if self._ruling is None:
            self.check_tenant(tenant)
            return [NewJob(options.id or new_id(), name, queue, check(payload, limit), *shared) for payload in payloads]
        checked = map(self._ruling.check, payloads)
        jobs = [(NewJob(options.id or new_id(), name, queue, one.text, *shared), one) for one in checked]
        return [self._told(job, one, options) for job, one in jobs]

    def _told(self, job: NewJob, checked: Checked, options: Options) -> NewJob:
        """With what the payload says of its job; it must not contradict what the caller says."""
        unique = checked.unique
        for name, given, said in (
            ("tenant", job.tenant, checked.tenant),
            ("correlation_id", options.correlation_id, checked.correlation_id),
            ("unique", options.unique, unique),
        ):
            if given is not None and said is not None and given != said:
                if name == "tenant" and options.tenant is None:
                    raise PayloadInvalid(
                        f"{self.name}: the payload names another tenant than that of the job that enqueues it; if that "
                        "is meant, say so with .options(tenant=…)",
                        name,
                    )
                raise PayloadInvalid(
                    f"{self.name}: option {name} is not what the payload says; leave the option out, it is taken from "
                    "the payload",
                    name,
                )
        if unique is not None and options.unique is None:
            # Where the key came from, for whoever makes the job again under another one, and may not know the kind.
            field = None if self.rules is None else self.rules.unique_field
            own = {**self.details(replace(options, unique=unique)), "unique_field": field}
            job = msgspec.structs.replace(job, unique=unique, options=_json(own))
        self.check_tenant(checked.tenant or job.tenant)
        return msgspec.structs.replace(
            job,
            tenant=checked.tenant or job.tenant,
            correlation_id=checked.correlation_id or job.correlation_id,
        )

    def details(self, options: Options) -> dict[str, Any]:
        """What is stored with a job for those who do not have its kind: NewJob.options."""
        details: dict[str, Any] = {}
        if self.phases:
            details["phases"] = [phase.name for phase in self.phases]
        if options.unique is not None:
            details["unique"] = options.unique.key
        if options.webhook is not None:
            settings = self._enqueuer.settings
            check_secrets(settings.webhook_secrets, "option webhook")
            url = check_url(options.webhook.url, settings.webhook_networks)
            details["webhook"] = {"url": url, "states": options.webhook.states}
        return details


def _no_tenant(kind: str) -> PayloadInvalid:
    return PayloadInvalid(
        f"{kind}: option tenant is missing, and every job of this app has one (setting tenants): enqueue it by "
        'app.tenant("acme").enqueue(…), or with .options(tenant="acme")',
        "tenant",
    )


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


__all__ = ["Enqueuer", "Handle", "Kind", "Mode", "Phase", "Request", "SyncHandle", "SyncRequest"]
