"""Everything that an app declares: kinds, pipelines, categories, schedules, breakers, webhooks, alerts, hooks."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from dutiful.context import Context
from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.cron import CatchUp
from dutiful.core.duration import Duration
from dutiful.core.errors import DutifulError, FieldError, UnknownKind, UsageError
from dutiful.core.job import JobRecord, NewJob, Unique
from dutiful.core.json import check_name
from dutiful.core.limits import KindLimit
from dutiful.core.metrics.alert import AlertRule
from dutiful.core.retry.policy import Retry
from dutiful.core.rules.rules import Rules
from dutiful.core.steps import SentEvent
from dutiful.declare.alert import AlertOptions, check_off, read_alert, rules_of
from dutiful.declare.attempt_hook import AttemptHook, HookFunction, read_hook
from dutiful.declare.batch import check_batch, read_batch
from dutiful.declare.breaker import BreakerSpec, breaker_policy, read_breaker
from dutiful.declare.breaker import name_of as breaker_name
from dutiful.declare.limits import Concurrency, RateLimit, read_limits
from dutiful.declare.schedule import ScheduleSpec, read_schedule
from dutiful.declare.webhook import WebhookSpec, read_webhook
from dutiful.kind import Declaration, Enqueuer, Kind, Mode
from dutiful.options import Options, check_priority, read_options, read_policy, read_timeout
from dutiful.payload.key_ring import no_keys
from dutiful.payload.sealing import seal_event
from dutiful.payload.signature import check_function
from dutiful.payload.sql_rules import KindDefault, PayloadRule
from dutiful.payload.validator import problems
from dutiful.pipeline import OnRetry, Pipeline
from dutiful.settings import DEFAULT_QUEUE
from dutiful.store.schedules import ScheduleRecord
from dutiful.store.webhooks import WebhookRecord

log = logging.getLogger("dutiful.maintenance")
P = ParamSpec("P")
R = TypeVar("R")
Resource = Callable[[], Any]
Callback = Callable[[JobRecord], Any]
CallbackT = TypeVar("CallbackT", bound=Callback)
HookT = TypeVar("HookT", bound=HookFunction)


class KindOptions(TypedDict, total=False):
    """The options of @app.job(…) and app.pipeline(…); those left out have the defaults of Registry._declarer."""

    queue: str
    priority: int  # lower runs first
    retry: Retry | str | None  # a policy or the name of one; None: that of the settings
    timeout: Duration | None  # of one attempt; None: that of the settings, "never": no limit
    max_crashes: int  # how many workers may die running a job before it fails
    on_crash: Literal["retry", "fail"]
    unique: Any
    category: str | None
    rules: Rules | None  # besides those of its category
    breaker: BreakerSpec | str | None  # while it is open, jobs of the kind wait, and no attempt is counted
    concurrency: Concurrency | Sequence[Concurrency] | None  # how many run at once, for each key
    rate: RateLimit | Sequence[RateLimit] | None  # how many start within a time, for each key
    tags: Sequence[str]  # by which lanes choose kinds
    encrypted: bool | None  # whether what is stored of its jobs is sealed; None: as the setting says


DECORATOR = ("name", "process", "inherit_secrets", "batch", "linger", "across_tenants")  # options of @app.job alone

Takes_co = TypeVar("Takes_co", covariant=True)  # what one call of a handler gets
OneJob = Literal["one job"]
Batches = Literal["batches"]


class JobDecorator(Protocol[Takes_co]):
    """What @app.job(…) with arguments returns; typed so that `enqueue` has the handler's parameters.

    That of a handler of batches takes the fields of one payload, which are not parameters. It is the same protocol, so
    that a call with options of unknown types, as in @app.job(**options), is still typed.
    """

    @overload
    def __call__(self: "JobDecorator[Batches]", function: Callable[..., Any], /) -> Kind[..., Any]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Kind[P, R]: ...


class Registry(Enqueuer):
    """The declaring half of an app; the other half, `Dutiful`, enqueues what is declared here."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind[Any, Any]] = {}
        self.categories: dict[str, Rules] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self.resources: dict[str, Resource] = {}
        self.breakers: dict[str, BreakerSpec] = {}
        self.webhooks: dict[str, WebhookSpec] = {}
        self.alerts: dict[str, AlertRule | None] = {}  # None: a built-in one that is off
        self.stale_callbacks: list[Callback] = []
        self.delete_callbacks: list[Callback] = []
        self.attempt_hooks: tuple[AttemptHook, ...] = ()
        self._encrypts = False

    @overload
    def job(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[P, Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Kind[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        process: bool = False,
        inherit_secrets: bool = False,
        **options: Unpack[KindOptions],
    ) -> JobDecorator[OneJob]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        batch: int,
        linger: Duration | None = None,
        across_tenants: bool = False,
        name: str | None = None,
        **options: Unpack[KindOptions],
    ) -> JobDecorator[Batches]: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        process: bool = False,
        inherit_secrets: bool = False,
        batch: int | None = None,
        linger: Duration | None = None,
        across_tenants: bool = False,
        **options: Unpack[KindOptions],
    ) -> Any:
        """Makes a function a kind; its parameters' types are the payload's schema. See KindOptions for the options.

        With `process`, a plain function runs in a process of its own, which can be killed. Its environment lacks
        Dutiful's own secrets, unless it is to `inherit_secrets`.

        With `batch`, the handler gets a list of up to so many jobs, and returns an outcome for each, or nothing. A
        batch that is not full waits up to `linger` for more. Its jobs have one tenant, unless it may be
        `across_tenants`.
        """
        _check_options(options, "a kind", DECORATOR)
        declare = self._declarer(**options)
        batches = read_batch(batch, linger, across_tenants)

        def register(function: Callable[..., Any]) -> Kind[Any, Any]:
            declared = declare(check_function(function, name))
            if batches is not None:
                check_batch(declared.name, declared.policy, process=process)
                declared = replace(declared, batch=batches)
            mode = _mode(function, process=process, name=declared.name)
            if inherit_secrets and mode is not Mode.PROCESS:
                raise UsageError(f"kind {declared.name}: inherit_secrets=True is for process=True; others have them")
            kind: Kind[Any, Any] = Kind(function, self, declared, mode, inherit_secrets=inherit_secrets)
            self.kinds[declared.name] = kind
            return kind

        return register if function is None else register(function)

    def pipeline(self, name: str, *, on_retry: OnRetry = "resume", **options: Unpack[KindOptions]) -> Pipeline:
        """A kind made of phases: `publish = app.pipeline("publish")`, then `@publish.phase` on each function."""
        if not {"batch", "linger", "across_tenants"}.isdisjoint(options):
            raise UsageError(f"pipeline {name}: batch is for @app.job(…), because phases are stored for each job")
        _check_options(options, "a pipeline", ("on_retry",))
        pipeline = self.kinds[name] = Pipeline(self, self._declarer(**options)(name), on_retry)
        return pipeline

    def _declarer(
        self,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = 100,
        retry: Retry | str | None = None,
        timeout: Duration | None = None,
        max_crashes: int = 3,
        on_crash: str = "retry",
        unique: Any = None,
        category: str | None = None,
        rules: Rules | None = None,
        breaker: BreakerSpec | str | None = None,
        concurrency: Concurrency | Sequence[Concurrency] | None = None,
        rate: RateLimit | Sequence[RateLimit] | None = None,
        tags: Sequence[str] = (),
        encrypted: bool | None = None,
    ) -> Callable[[str], Declaration]:
        """Checks the options of a kind; its name may be known only later."""
        declared = partial(
            Declaration,
            queue=check_name(queue, "queue"),
            priority=check_priority(priority),
            policy=read_policy(retry, max_crashes, on_crash),
            timeout=read_timeout(timeout),
            options=read_options(Options(), {"unique": unique}),
            category=category,
            rules=self._rules(category, rules),
            breaker=breaker_name(breaker),
            tags=_tags(tags),
            encrypted=_boolean(encrypted),
        )

        def declare(name: str) -> Declaration:
            _check_new(name, self.kinds, "a kind", " name: @app.job(name=…)")
            limits = read_limits(check_name(name, "kind"), concurrency, rate)
            known = {spec.limit.name: spec.limit for kind in self.kinds.values() for spec in kind.limits}
            for limit in (spec.limit for spec in limits):
                if known.get(limit.name, limit) != limit:
                    raise UsageError(
                        f"kind {name}: another kind declares the limit {limit.name!r} with other numbers; those that "
                        "share a limit by its name declare the same"
                    )
            self._encrypts = self._encrypts or encrypted is True
            return declared(name=name, limits=limits)

        return declare

    def category(self, name: str, rules: Rules | None = None) -> Rules:
        """Declares a group of kinds that share rules for their payloads: `@app.job(category=name)` joins it."""
        _check_new(check_name(name, "category"), self.categories, "a category")
        self.categories[name] = Rules().plus(_read_rules(rules))
        return self.categories[name]

    def _rules(self, category: str | None, own: Rules | None) -> Rules | None:
        if category is None:
            return _read_rules(own)
        if category not in self.categories:
            known = ", ".join(self.categories) or "none yet"
            raise UsageError(f"there is no category {category!r}, but: {known}; declare it first: app.category(…)")
        return self.categories[category].plus(_read_rules(own))

    def validate(self, kind: Kind[Any, Any] | Rules | str, payload: Mapping[str, Any]) -> list[FieldError]:
        """All errors that keep a payload from being enqueued as a kind, or by rules alone; empty if it is valid."""
        if isinstance(kind, Rules):
            return problems(kind, payload)
        return (self.kind(kind) if isinstance(kind, str) else kind).problems(payload)

    def kind(self, name: str) -> Kind[Any, Any]:
        try:
            return self.kinds[name]
        except KeyError:
            known = ", ".join(sorted(self.kinds)) or "none yet"
            raise UnknownKind(f"there is no kind {name!r}; this app has: {known}") from None

    def resource(self, function: Resource) -> Resource:
        """Makes a function (plain, async, or a generator that cleans up after its yield) a shared resource."""
        self.resources[function.__name__] = function
        return function

    def breaker(
        self, name: str, *, failures: int | None = None, open_for: Duration | None = None, probes: int = 1
    ) -> BreakerSpec:
        """Declares a breaker: after so many `failures` in a row it rejects calls for `open_for`, then allows `probes`.

        What is left out is read from the settings: breaker_failures, breaker_open_for.
        """
        _check_new(name, self.breakers, "a breaker")
        spec = self.breakers[name] = read_breaker(name, failures, open_for, probes)
        return spec

    def on_stale(self, function: CallbackT) -> CallbackT:
        """Registers a function (plain or async) to call with each job marked stale, before the event is published."""
        self.stale_callbacks.append(_callback(function, "on_stale"))
        return function

    def on_delete(self, function: CallbackT) -> CallbackT:
        """Registers a function (plain or async) to call with each job that retention deleted, before the event."""
        self.delete_callbacks.append(_callback(function, "on_delete"))
        return function

    def around_attempt(self, function: HookT) -> HookT:
        """Runs a generator function, which gets the context and yields once, around every attempt of every kind.

        It runs in the thread or process of the handler, or with an async handler on the event loop; an async generator
        surrounds async handlers only. In a pipeline, each phase is surrounded. The first one declared is the outermost.
        """
        self.attempt_hooks = (*self.attempt_hooks, read_hook(function))
        return function

    def schedule(
        self,
        kind: Kind[Any, Any],
        cron: str | None = None,
        *,
        every: Duration | None = None,
        name: str | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp | str = CatchUp.ONE,
        payload: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ScheduleSpec:
        """Declares a schedule that enqueues `kind`: by a cron expression in a time zone, or `every` so often."""
        spec = read_schedule(kind, cron, every, name, timezone, catch_up, payload or {}, options, self.settings)
        if self.kinds.get(spec.kind.name) is not spec.kind:
            raise UsageError(f"kind {spec.kind.name} is of another app: declare its schedule there")
        _check_new(spec.name, self.schedules, "a schedule", " name=…")
        self.schedules[spec.name] = spec
        return spec

    def webhook(
        self,
        name: str,
        url: str,
        *,
        kinds: Iterable[Kind[Any, Any] | str] | None = None,
        states: Iterable[str] | None = None,
        alerts: bool = False,
        secrets: str | Iterable[str] | None = None,
    ) -> WebhookRecord:
        """Declares a URL to post to when jobs end: all, or those of these kinds and states; signed with the settings'
        webhook_secrets, or with its own `secrets`, the newest first.

        With `alerts`, it gets alerts that fire or end, and jobs only if kinds or states are named.
        """
        _check_new(name, self.webhooks, "a webhook")
        spec = self.webhooks[name] = read_webhook(name, url, kinds, states, secrets, self.settings, alerts=alerts)
        return spec.record

    def webhook_secrets(self, name: str | None) -> tuple[str, ...]:
        """The secrets that sign a webhook's messages; without a name, those of a job's own webhook.

        A webhook that this app does not declare has none here, because another app may have given it its own.
        """
        if name is None:
            return self.settings.webhook_secrets
        spec = self.webhooks.get(name)
        return () if spec is None else spec.secrets or self.settings.webhook_secrets

    def alert(
        self, name: str, metric: str | None = None, *, off: bool = False, **options: Unpack[AlertOptions]
    ) -> AlertRule | None:
        """Declares an alert that fires once `metric` is above or below the threshold for `hold`; the name of a built-in
        alert replaces that one, or with off=True turns it off. See docs/guides/alerts.md for the rest."""
        _check_new(name, self.alerts, "an alert")
        if off:
            check_off(name, {"metric": metric, **options})
        self.alerts[name] = None if off else read_alert(name, metric, **options)
        return self.alerts[name]

    def alert_rules(self) -> dict[str, AlertRule]:
        """All rules that a worker evaluates, by name."""
        settings = self.settings
        return rules_of(self.alerts, settings.alerts_off, runbook_url=settings.runbook_url, counting=settings.metrics)

    def schedule_records(self, now: datetime) -> list[ScheduleRecord]:
        """The schedules to store when the app starts now, without those of kinds that its workers do not run.

        One that cannot be stored is logged and left out: it must not keep the others, or any service, from running.
        """
        kinds, records = self.settings.kinds, []
        for spec in self.schedules.values():
            if not kinds or spec.kind.name in kinds:
                try:
                    records.append(spec.record(now))
                except DutifulError as error:
                    log.error("schedule %s is not stored: %s", spec.name, error)
        return records

    def breaker_policies(self) -> dict[str, BreakerPolicy]:
        """The policy of every breaker that is declared, or that a kind names."""
        named = {kind.breaker for kind in self.kinds.values() if kind.breaker is not None}
        default = dict.fromkeys(named, breaker_policy(self.settings))
        return default | {name: spec.policy(self.settings) for name, spec in self.breakers.items()}

    def breaker_kinds(self) -> dict[str, str | None]:
        """The breaker of every kind."""
        return {name: kind.breaker for name, kind in self.kinds.items()}

    def kind_limits(self) -> dict[str, list[KindLimit]]:
        """The limits of every kind."""
        for kind in self.kinds.values():
            if kind.limits:  # phases, and the fields of batches, are known by now
                kind.check_limit_keys([field.name for field in kind.signature.fields()])
        return {name: [spec.stored for spec in kind.limits] for name, kind in self.kinds.items()}

    @property
    def encrypts(self) -> bool:
        """Whether some kind may be encrypted."""
        return self._encrypts or self.settings.encrypted

    def seal(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs with the payloads of encrypted kinds sealed."""
        return [job if (kind := self.kinds.get(job.kind)) is None else kind.seal(job) for job in jobs]

    @property
    def encrypts_events(self) -> bool:
        """Whether the data of sent events is sealed: where all kinds are encrypted, because it belongs to none."""
        return self.settings.encrypted

    def seal_event(self, event: SentEvent) -> SentEvent:
        if (ring := self.key_ring) is None:
            raise no_keys("setting encrypted is on")
        return seal_event(ring, event)

    def payload_rules(self) -> dict[str, PayloadRule | None]:
        """The rules of every kind that the database itself checks."""
        return {
            name: PayloadRule.of(name, kind.rules or Rules(), kind.signature, sealed=kind.encrypted)
            if kind.rules is not None or kind.encrypted
            else None
            for name, kind in self.kinds.items()
        }

    def kind_defaults(self) -> list[KindDefault]:
        """What every kind declares for jobs that are enqueued without it."""
        return [kind.default for kind in self.kinds.values()]


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(tags, list | tuple):
        raise UsageError(f'tags {tags!r:.80} must be a list of names, as in tags=["gpu"]')
    return tuple(check_name(tag, "tag") for tag in tags)


def _check_options(given: Mapping[str, Any], what: str, others: tuple[str, ...]) -> None:
    known = (*others, *KindOptions.__annotations__)
    for name in given.keys() - set(known):
        raise UsageError(f"there is no option {name!r} of {what}; there are: {', '.join(known)}")


def _check_new(name: str, known: Container[str], what: str, another: str = " name") -> None:
    if name in known:
        raise UsageError(f"there is {what} {name!r:.80} already; give one of them another{another}")


def _read_rules(value: Any) -> Rules | None:
    if value is not None and not isinstance(value, Rules):
        raise UsageError(f"rules {value!r:.80} must be Rules(…)")
    if value is None or not isinstance(value.unique, Unique):
        return value
    return replace(value, unique=read_options(Options(), {"unique": value.unique}).unique)


def _boolean(encrypted: Any) -> bool | None:
    if encrypted not in (True, False, None):
        raise UsageError(f"encrypted {encrypted!r:.80} must be True or False; left out, the setting of that name holds")
    return encrypted  # type: ignore[no-any-return]


def _callback(function: CallbackT, name: str) -> CallbackT:
    if not callable(function):
        raise UsageError(f"{name} got {function!r:.80}: give it a function of one job, plain or async")
    return function


def _mode(function: Callable[..., Any], *, process: bool, name: str) -> Mode:
    if inspect.iscoroutinefunction(function):
        if process:
            raise UsageError(f"kind {name}: process=True is for plain functions; an async one runs on the event loop")
        return Mode.LOOP
    if process and "<" in function.__qualname__:  # of a lambda, or inside a function
        raise UsageError(
            f"kind {name}: process=True is for functions at module level, because the process imports them; "
            f"{function.__qualname__} is not one"
        )
    return Mode.PROCESS if process else Mode.THREAD
