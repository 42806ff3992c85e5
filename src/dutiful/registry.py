"""What an app declares: categories, kinds, pipelines, resources, breakers, schedules, callbacks, each by its name."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import msgspec

from dutiful.breaker import BreakerSpec, breaker_policy, read_breaker
from dutiful.breaker import name_of as breaker_name
from dutiful.context import Context
from dutiful.core.breaker import BreakerPolicy
from dutiful.core.cron import CatchUp, Cron, Every
from dutiful.core.duration import Duration
from dutiful.core.errors import FieldError, UnknownKind, UsageError
from dutiful.core.job import JobRecord, Unique
from dutiful.core.payload import check_name
from dutiful.core.retry import Retry
from dutiful.core.rules import Rules
from dutiful.duties import ScheduleRecord
from dutiful.kind import Enqueuer, Kind, Mode
from dutiful.options import Options, read_options, read_policy, read_timeout
from dutiful.payload_rule import PayloadRule
from dutiful.pipeline import OnRetry, Pipeline
from dutiful.ruling import problems
from dutiful.schedule import ScheduleSpec, read_schedule_options
from dutiful.settings import DEFAULT_QUEUE
from dutiful.signature import check_function
from dutiful.telling import Telling

P = ParamSpec("P")
R = TypeVar("R")
Resource = Callable[[], Any]
Callback = Callable[[JobRecord], Any]
CallbackT = TypeVar("CallbackT", bound=Callback)


class JobDecorator:
    """What @app.job(…) with arguments returns; typed so that `enqueue` has the handler's parameters."""

    def __init__(self, register: Callable[[Callable[..., Any]], Kind[Any, Any]]) -> None:
        self._register = register

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Kind[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Kind[Any, Any]:
        return self._register(function)


class Registry(Telling, Enqueuer):
    """The declaring half of an app; the other half enqueues what is declared here."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, Kind[Any, Any]] = {}
        self.categories: dict[str, Rules] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self.resources: dict[str, Resource] = {}
        self.breakers: dict[str, BreakerSpec] = {}
        self.stale_callbacks: list[Callback] = []
        self.delete_callbacks: list[Callback] = []

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
        queue: str = DEFAULT_QUEUE,
        priority: int = 100,
        retry: Retry | str | None = None,
        timeout: Duration | None = None,
        process: bool = False,
        max_crashes: int = 3,
        on_crash: Literal["retry", "fail"] = "retry",
        unique: Any = None,
        category: str | None = None,
        rules: Rules | None = None,
        breaker: BreakerSpec | str | None = None,
    ) -> JobDecorator: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 100,
        retry: Retry | str | None = None,
        timeout: Duration | None = None,
        process: bool = False,
        max_crashes: int = 3,
        on_crash: Literal["retry", "fail"] = "retry",
        unique: Any = None,
        category: str | None = None,
        rules: Rules | None = None,
        breaker: BreakerSpec | str | None = None,
    ) -> Any:
        """Make a function a kind; its parameters' types are the payload's schema, and `rules` add to its category's.

        While the `breaker` is open, its jobs wait, and spend no attempt.
        """
        ruled, under = self._rules(category, rules), breaker_name(breaker)
        policy, limit = read_policy(retry, max_crashes, on_crash), read_timeout(timeout)

        def register(function: Callable[..., Any]) -> Kind[Any, Any]:
            own = check_function(function)
            chosen = self._new_name(name or own)
            self.kinds[chosen] = Kind(
                function,
                self,
                name=chosen,
                queue=queue,
                priority=priority,
                policy=policy,
                timeout=limit,
                mode=_mode(function, process=process, name=chosen),
                options=read_options(Options(), {"unique": unique}),
                category=category,
                rules=ruled,
                breaker=under,
            )
            return self.kinds[chosen]

        return JobDecorator(register) if function is None else register(function)

    def pipeline(
        self,
        name: str,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = 100,
        retry: Retry | str | None = None,
        on_retry: OnRetry = "resume",
        timeout: Duration | None = None,
        max_crashes: int = 3,
        on_crash: Literal["retry", "fail"] = "retry",
        unique: Any = None,
        category: str | None = None,
        rules: Rules | None = None,
        breaker: BreakerSpec | str | None = None,
    ) -> Pipeline:
        """A kind made of phases: `publish = app.pipeline("publish")`, then `@publish.phase` on each function."""
        pipeline = Pipeline(
            self,
            name=self._new_name(name),
            queue=queue,
            priority=priority,
            policy=read_policy(retry, max_crashes, on_crash),
            timeout=read_timeout(timeout),
            options=read_options(Options(), {"unique": unique}),
            on_retry=on_retry,
            category=category,
            rules=self._rules(category, rules),
            breaker=breaker_name(breaker),
        )
        self.kinds[name] = pipeline
        return pipeline

    def category(self, name: str, rules: Rules | None = None) -> Rules:
        """Name a group of kinds that share rules for their payloads: `@app.job(category=name)` joins it."""
        if check_name(name, "category") in self.categories:
            raise UsageError(f"there is a category {name!r} already; give one of them another name")
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
        """Everything that keeps a payload from being enqueued as a kind, or by rules alone; nothing, if it can be."""
        if isinstance(kind, Rules):
            return problems(kind, payload)
        return (self.kind(kind) if isinstance(kind, str) else kind).problems(payload)

    def _new_name(self, name: str) -> str:
        if name in self.kinds:
            raise UsageError(f"there is a kind {name!r} already; give one of them another name: @app.job(name=…)")
        return name

    def kind(self, name: str) -> Kind[Any, Any]:
        try:
            return self.kinds[name]
        except KeyError:
            known = ", ".join(sorted(self.kinds)) or "none yet"
            raise UnknownKind(f"there is no kind {name!r}; this app has: {known}") from None

    def resource(self, function: Resource) -> Resource:
        """Make a function (plain, async, or a generator that cleans up after its yield) a shared resource."""
        self.resources[function.__name__] = function
        return function

    def breaker(
        self, name: str, *, failures: int | None = None, open_for: Duration | None = None, probes: int = 1
    ) -> BreakerSpec:
        """Declare a breaker: after so many failures in a row it lets no call through for that long, then `probes` to
        find out. What is left out is in the settings: breaker_failures, breaker_open_for.
        """
        if name in self.breakers:
            raise UsageError(f"there is a breaker {name!r} already; give one of them another name")
        spec = read_breaker(name, failures, open_for, probes)
        self.breakers[name] = spec
        return spec

    def on_stale(self, function: CallbackT) -> CallbackT:
        """Call a function (plain or async) with each job that retention has marked stale, before the event goes out."""
        self.stale_callbacks.append(_callback(function, "on_stale"))
        return function

    def on_delete(self, function: CallbackT) -> CallbackT:
        """Call a function (plain or async) with each job that retention has deleted, before the event goes out."""
        self.delete_callbacks.append(_callback(function, "on_delete"))
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
        """Enqueue `kind` again and again: by a cron expression in a time zone, or every so often."""
        if not isinstance(kind, Kind):
            wanted = f"app.kind({kind!r})" if isinstance(kind, str) else "what @app.job has made of your function"
            raise UsageError(f"{kind!r:.80} is not a kind: give app.schedule the kind itself, {wanted}")
        if (cron is None) == (every is None):
            raise UsageError("give a schedule either a cron expression or every=…")
        when = Cron(cron, timezone) if cron is not None else Every(every if every is not None else 0)
        try:
            policy = CatchUp(catch_up)
        except ValueError:
            raise UsageError(f"catch_up {catch_up!r} must be one of: skip, one, all") from None
        checked = kind.check(payload or {})
        chosen = read_schedule_options(options)
        if self.settings.tenants and chosen.tenant is None and checked.tenant is None:
            raise UsageError(
                f"schedule {name or kind.name}: option tenant is missing, and every job of this app has one (setting "
                'tenants); give it here, as in tenant="acme"'
            )
        if chosen.tenant is not None and checked.tenant is not None and chosen.tenant != checked.tenant:
            raise UsageError(
                f"schedule {name or kind.name}: option tenant is not what the payload says; leave the option out, it "
                "is taken from the payload"
            )
        spec = ScheduleSpec(name or kind.name, kind, when, policy, msgspec.json.decode(checked.text), chosen)
        if spec.name in self.schedules:
            raise UsageError(f"there is a schedule {spec.name!r} already; give one of them another name=…")
        self.schedules[spec.name] = spec
        return spec

    def schedule_records(self, now: datetime) -> list[ScheduleRecord]:
        """As they are stored, for an app that starts now; not those of kinds that its workers leave to others."""
        taken = self.settings.kinds
        return [spec.record(now) for spec in self.schedules.values() if not taken or spec.kind.name in taken]

    def breaker_policies(self) -> dict[str, BreakerPolicy]:
        """Of every breaker that is declared, or that a kind names."""
        named = {kind.breaker for kind in self.kinds.values() if kind.breaker is not None}
        usual = dict.fromkeys(named, breaker_policy(self.settings))
        return usual | {name: spec.policy(self.settings) for name, spec in self.breakers.items()}

    def breaker_kinds(self) -> dict[str, str | None]:
        """The breaker of every kind."""
        return {name: kind.breaker for name, kind in self.kinds.items()}

    def payload_rules(self) -> dict[str, PayloadRule | None]:
        """What a database can see to by itself, of every kind."""
        return {
            name: None if kind.rules is None else PayloadRule.of(name, kind.rules) for name, kind in self.kinds.items()
        }


def _read_rules(value: Any) -> Rules | None:
    if value is not None and not isinstance(value, Rules):
        raise UsageError(f"rules {value!r:.80} must be Rules(…)")
    if value is None or not isinstance(value.unique, Unique):
        return value
    return replace(value, unique=read_options(Options(), {"unique": value.unique}).unique)


def _callback(function: CallbackT, name: str) -> CallbackT:
    if not callable(function):
        raise UsageError(f"{name} got {function!r:.80}: give it a function of one job, plain or async")
    return function


def _mode(function: Callable[..., Any], *, process: bool, name: str) -> Mode:
    if inspect.iscoroutinefunction(function):
        if process:
            raise UsageError(f"kind {name}: process=True is for plain functions; an async one runs on the event loop")
        return Mode.LOOP
    return Mode.PROCESS if process else Mode.THREAD
