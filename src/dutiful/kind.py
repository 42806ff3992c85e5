"""A kind of job: a function, its typed payload, its policy."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeVar
from uuid import UUID

import msgspec

from dutiful.context import CURRENT, Context
from dutiful.core.errors import FieldError, PayloadInvalid, UsageError
from dutiful.core.job import SUBJECT_LIMIT, NewJob
from dutiful.core.json import encode
from dutiful.core.retry.policy import Retry
from dutiful.core.rules.rules import Rules
from dutiful.core.sealed import START
from dutiful.core.settle import Policy
from dutiful.core.webhooks.endpoint import check_url
from dutiful.core.webhooks.message import check_secrets
from dutiful.declare.attempt_hook import AttemptHook
from dutiful.declare.batch import BatchSpec
from dutiful.declare.limits import LimitSpec
from dutiful.handle import Enqueuer, Handle, SyncHandle
from dutiful.options import DEFAULT_RETRY, NO_TIMEOUT, Options, read_options
from dutiful.payload.batch_signature import BatchSignature
from dutiful.payload.key_ring import KeyRing, no_keys
from dutiful.payload.sealing import seal_job
from dutiful.payload.signature import Schema, Signature
from dutiful.payload.sql_rules import KindDefault
from dutiful.payload.validator import Accepted, Checked, PayloadValidator, Upgrade
from dutiful.settings import Settings
from dutiful.workflow.call import Call

P = ParamSpec("P")
R = TypeVar("R")
_NO_ID = UUID(int=0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a kind declares besides its function, checked."""

    name: str
    queue: str
    priority: int
    policy: Policy
    timeout: timedelta | None
    options: Options  # of its jobs, unless they are enqueued with others
    category: str | None
    rules: Rules | None
    breaker: str | None  # while it is open, jobs of this kind are blocked
    limits: tuple[LimitSpec, ...] = ()  # its jobs are blocked until each has a slot for them
    tags: tuple[str, ...] = ()  # by which lanes choose it
    encrypted: bool | None = None  # None: as the settings say
    batch: BatchSpec | None = None  # its handler gets several jobs at once


class Kind(Generic[P, R]):
    """A registered function; call it to run it directly, `enqueue` it to have a worker run it."""

    phases: tuple[Phase, ...] = ()  # of a pipeline

    def __init__(
        self,
        function: Callable[..., Any],
        enqueuer: Enqueuer,
        declared: Declaration,
        mode: Mode,
        signature: Schema | None = None,
        *,
        inherit_secrets: bool = False,
    ) -> None:
        self.function = function
        self.inherit_secrets = inherit_secrets  # whether its process gets Dutiful's secrets
        self.name = name = declared.name
        self.queue = declared.queue
        self.priority = declared.priority
        self.mode = mode
        self.category = declared.category
        self.rules = declared.rules
        self.breaker = declared.breaker
        self.limits = declared.limits
        self.tags = declared.tags
        self._encrypted = declared.encrypted
        self.batch = declared.batch
        self._policy = declared.policy
        self._timeout = declared.timeout
        self._defaults = declared.options
        self._default_policy: tuple[Settings, Policy] | None = None
        self._validator = None if self.rules is None else PayloadValidator(name, self.rules, lambda: self.signature)
        self._enqueuer = enqueuer
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.signature = signature or (Signature if self.batch is None else BatchSignature)(function, name)
        if self._encrypted:
            self.check_clear()
        if isinstance(self.signature, Signature) and self.batch is None:
            self.check_limit_keys(self.signature.names)
            self._check_unique_key(self.signature.names)
        if mode is Mode.PROCESS and self.signature.context is not None:
            raise UsageError(
                f"kind {name} runs in a process of its own, which has no context; leave {self.signature.context} out"
            )

    @property
    def policy(self) -> Policy:
        """The kind's policy; without a declared retry, it has that of the settings."""
        if self._policy.retry is not DEFAULT_RETRY:
            return self._policy
        settings = self._enqueuer.settings
        if self._default_policy is None or self._default_policy[0] is not settings:
            self._default_policy = settings, msgspec.structs.replace(self._policy, retry=settings.retry)
        return self._default_policy[1]

    @property
    def timeout(self) -> timedelta | None:
        """How long one attempt may take: its own, or that of the settings for its queue; None: no limit."""
        if self._timeout is None:
            return self._enqueuer.settings.timeout_of(self.queue)
        return None if self._timeout is NO_TIMEOUT else self._timeout

    @property
    def encrypted(self) -> bool:
        """Whether what is stored of its jobs is sealed."""
        return self._enqueuer.settings.encrypted if self._encrypted is None else self._encrypted

    @property
    def key_ring(self) -> KeyRing:
        """The keys that seal its jobs; UsageError if this process has none."""
        if (ring := self._enqueuer.key_ring) is None:
            raise no_keys(f"kind {self.name} is encrypted")
        return ring

    def seal(self, job: NewJob) -> NewJob:
        """The job as it is stored; a copy of a sealed one needs no key."""
        if not self.encrypted or job.payload.startswith(START):
            return job
        if self._encrypted is None:
            self.check_clear()
        return seal_job(self.key_ring, job)

    def check_clear(self) -> None:
        """Refuses declarations that would store a field of an encrypted payload beside it, in clear."""
        fields = (
            {}
            if self.rules is None
            else {"unique": self.rules.unique_field, "correlation_id": self.rules.correlation_id}
        )
        for name, field in fields.items():
            if field is not None:
                raise UsageError(
                    f"kind {self.name} is encrypted, and its rules store the field {field!r} in clear, as {name}: "
                    f"leave {name} out of the rules, and give each job one that may be read, by .options({name}=…)"
                )
        for spec in self.limits:
            if isinstance(spec.key, str) and spec.key != "tenant":
                raise UsageError(
                    f"kind {self.name} is encrypted, and its limit {spec.limit.name} stores the field {spec.key!r} in "
                    "clear: give the limit a function as its key, which returns a text that may be read"
                )

    def check_limit_keys(self, names: Collection[str]) -> None:
        """Refuses a limit whose key is no field: all jobs would share the limit, unnoticed."""
        for spec in self.limits if self.rules is None and self.signature.strict else ():
            if isinstance(spec.key, str) and spec.key != "tenant" and spec.key not in names:
                raise UsageError(
                    f"kind {self.name}: the key {spec.key!r} of its limit {spec.limit.name} is no field of the "
                    f"payload, which has: {', '.join(names) or 'none'}; name one of these, or tenant, or leave key out"
                )

    def _check_unique_key(self, names: Collection[str]) -> None:
        """Refuses a key with a field in braces: all jobs would have one key, and all but one be left out, unnoticed."""
        key = "" if self._defaults.unique is None else self._defaults.unique.key
        for name in names:
            if f"{{{name}}}" in key:
                raise UsageError(
                    f"kind {self.name}: '{{{name}}}' in its unique key is not filled in: all jobs of the kind have one "
                    f'key; give each job its own, as in .options(unique=f"…{{{name}}}").enqueue(…)'
                )

    @property
    def default(self) -> KindDefault:
        """What it declares for its jobs, as SQL reads it."""
        return KindDefault.of(
            self.name, self.queue, self.priority, self.policy.retry.max_attempts, self._defaults.unique
        )

    @property
    def attempt_hooks(self) -> tuple[AttemptHook, ...]:
        """What its app runs around every attempt, the outermost first."""
        return self._enqueuer.attempt_hooks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<kind {self.name}>"

    def options(self, **changes: Any) -> "Request[P, R]":
        """Options for one job: priority, run_at, delay, unique, tenant, within, …"""
        return Request(self, read_options(self._defaults, changes))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A job to be enqueued with others: part of a chain, a group or a workflow."""
        return Call(self, self._defaults, self.signature.bind(args, kwargs))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Stores a job; once this returns, the job is durable."""
        job = self.prepare(self._defaults, self.signature.bind(args, kwargs))
        return await self._enqueuer.submit(job, self._defaults.within)

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        """Stores a job for each payload, all or none, in one transaction."""
        return await Request(self, self._defaults).enqueue_many(payloads)

    @property
    def sync(self) -> "SyncRequest[P, R]":
        """The same for blocking code: send_email.sync.enqueue(…)."""
        return SyncRequest(self, self._defaults)

    def upgrade(self, version: str) -> Callable[[Upgrade], Upgrade]:
        """Registers a function (payload -> payload) that upgrades payloads of an older version before they run."""
        if self._validator is None:
            raise UsageError(f"kind {self.name} has no rules, so no versions: give it some, Rules(versions=[…])")
        validator = self._validator

        def register(function: Upgrade) -> Upgrade:
            validator.add_upgrade(version, function)
            return function

        return register

    def check(self, payload: Mapping[str, Any]) -> Checked:
        """Checks a payload by the kind's rules and the handler's signature."""
        if self._validator is not None:
            return self._validator.check(payload)
        return Checked(self.signature.encode(payload, self._enqueuer.settings.payload_limit))

    def problems(self, payload: Mapping[str, Any]) -> list[FieldError]:
        """All errors of a payload; empty if it can be enqueued."""
        try:
            self.check(payload)
        except PayloadInvalid as error:
            return list(error.errors)
        return []

    def check_tenant(self, tenant: str | None) -> None:
        """PayloadInvalid if the settings require a tenant and there is none; SQL does not know that setting."""
        if tenant is None and self._enqueuer.settings.tenants:
            raise PayloadInvalid(
                f"{self.name}: option tenant is missing, and every job of this app has one (setting tenants): enqueue "
                'it by app.tenant("acme").enqueue(…), or with .options(tenant="acme")',
                "tenant",
            )

    def accept(self, payload: str, tenant: str | None, subject: str | None = None) -> Accepted:
        """The handler's part of a stored payload; PayloadInvalid if it or the subject breaks the kind's rules."""
        if self._validator is None:
            return Accepted(payload, payload)
        return self._validator.accept(payload, tenant, subject)

    def prepare(self, options: Options, payload: Mapping[str, Any], *, later: frozenset[str] = frozenset()) -> NewJob:
        """A checked job, ready to be stored; `later` are fields that it gets when it starts."""
        if later and self._validator is not None:
            raise UsageError(
                f"{self.name} has rules for its payload, which are checked now: {sorted(later)[0]} cannot be the "
                "result of another job; let the handler read it, by await ctx.parents()"
            )
        if unknown := next((spec for spec in self.limits if spec.key in later), None):
            raise UsageError(
                f"{self.name}: the key of its limit {unknown.limit.name} is the field {unknown.key!r}, which is to be "
                "the result of another job, and jobs are counted by their keys before they start: give the field a "
                "value, or add the job by ctx.spawn() once the result is known"
            )
        return self.prepare_many(options, (payload,), later=later)[0]

    def prepare_many(
        self, options: Options, payloads: Iterable[Mapping[str, Any]], *, later: frozenset[str] = frozenset()
    ) -> list[NewJob]:
        """Checked jobs; those enqueued by a handler inherit its correlation id, parent and tenant."""
        settings = self._enqueuer.settings
        limit = settings.payload_limit
        current = CURRENT.get()
        correlation_id, parent_id, tenant = options.correlation_id, options.parent_id, options.tenant
        if current is not None:
            correlation_id = correlation_id or current.correlation_id
            parent_id = parent_id or current.job_id
            tenant = tenant or current.tenant
        subject = None if options.subject is None else _subject(options.subject)
        # Made once and copied, because that takes half the time of making each by itself.
        template = NewJob(
            _NO_ID, self.name, options.queue or self.queue, "",
            priority=self.priority if options.priority is None else options.priority,
            max_attempts=options.max_attempts or self.policy.retry.max_attempts,
            run_at=options.run_at,
            delay=options.delay,
            tenant=tenant,
            correlation_id=correlation_id,
            parent_id=parent_id,
            retry_of=options.retry_of,
            subject=subject,
            created_by=options.created_by,
            options=_json(self.details(options)),
            unique=options.unique,
            depends_on=options.depends_on,
            policies=() if options.on_failure is None else (options.on_failure,) * len(options.depends_on),
        )  # fmt: skip
        copy, own_id, new_id = msgspec.structs.replace, options.id, self._enqueuer.new_id
        if self._validator is None:
            self.check_tenant(tenant)
            check = partial(self.signature.encode, later=later) if later else self.signature.encode
            plain = [copy(template, id=own_id or new_id(), payload=check(payload, limit)) for payload in payloads]
            return plain if not self.limits else list(map(self.with_limit_keys, plain))
        others = () if subject is None else self._validator.subject_errors(subject)
        checked = (self._validator.check(payload, others) for payload in payloads)
        jobs = [(copy(template, id=own_id or new_id(), payload=one.text), one) for one in checked]
        made = [self._with_columns(job, one, options) for job, one in jobs]
        return made if not self.limits else list(map(self.with_limit_keys, made))

    def with_limit_keys(self, job: NewJob) -> NewJob:
        """Adds the keys by which its limits count it."""
        fields = {field.name: field.default for field in self.signature.fields() if not field.required}
        fields |= msgspec.json.decode(job.payload)
        details = {} if job.options is None else msgspec.json.decode(job.options)
        details["limits"] = {spec.limit.name: spec.key_of(self.name, fields, job.tenant) for spec in self.limits}
        return msgspec.structs.replace(job, options=_json(details))

    def _with_columns(self, job: NewJob, checked: Checked, options: Options) -> NewJob:
        """Adds the columns that the payload sets; they must not contradict the options."""
        unique = checked.unique
        for name, given, from_payload in (
            ("tenant", job.tenant, checked.tenant),
            ("correlation_id", options.correlation_id, checked.correlation_id),
            ("unique", options.unique, unique),
        ):
            if given is not None and from_payload is not None and given != from_payload:
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
            # The field is stored, because a requeue under another key may not know the kind.
            field = None if self.rules is None else self.rules.unique_field
            own = {**self.details(replace(options, unique=unique)), "unique_field": field}
            job = msgspec.structs.replace(job, unique=unique, options=_json(own))
        self.check_tenant(checked.tenant or job.tenant)
        return msgspec.structs.replace(
            job, tenant=checked.tenant or job.tenant, correlation_id=checked.correlation_id or job.correlation_id
        )

    def details(self, options: Options) -> dict[str, Any]:
        """NewJob.options: what readers without the kind need to know."""
        details: dict[str, Any] = {}
        if self.phases:
            details["phases"] = [phase.name for phase in self.phases]
        if options.unique is not None:
            details |= options.unique.as_options()
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

    def options(self, **changes: Any) -> Self:
        return type(self)(self._kind, read_options(self._options, changes))

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        return self._kind.prepare(self._options, self._kind.signature.bind(args, kwargs))

    def _prepare_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[NewJob]:
        if self._options.unique is not None or self._options.id is not None:
            raise UsageError("enqueue_many with one unique key or id for all makes no sense; enqueue them one by one")
        return self._kind.prepare_many(self._options, payloads)


class Request(_Request[P, R]):
    """A kind with options, ready to be enqueued."""

    __slots__ = ()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        return Call(self._kind, self._options, self._kind.signature.bind(args, kwargs))

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

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        return self._kind._enqueuer.submit_sync(self._prepare(args, kwargs), self._options.within)

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[SyncHandle[R]]:
        return self._kind._enqueuer.submit_many_sync(self._prepare_many(payloads), self._options.within)


def _subject(subject: Mapping[str, Any]) -> str:
    try:
        return encode(dict(subject), what="subject", limit=SUBJECT_LIMIT)
    except PayloadInvalid as error:
        raise PayloadInvalid(str(error), "subject") from None


__all__ = ["Enqueuer", "Handle", "Kind", "Mode", "Phase", "Request", "SyncHandle", "SyncRequest"]
