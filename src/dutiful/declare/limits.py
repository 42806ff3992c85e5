"""Limits as the code declares them: how many jobs of a key run at once, or start within a time."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import PayloadInvalid, UsageError
from dutiful.core.json import check_name
from dutiful.core.limits import KEY_LIMIT, KindLimit, Limit
from dutiful.options import whole_number

Key = str | Callable[..., str | None] | None
SHORTEST, LONGEST = timedelta(milliseconds=10), timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `limit` jobs with one key run at once, in all workers together.

    `key`: a field of the payload, "tenant" for the job's tenant, or a function of the payload's fields, which may name
    the tenant too; it returns None for jobs without a limit. Without a key, all jobs of the kind share the limit. Kinds
    with the same `name` share it.
    """

    limit: int
    key: Key = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `limit` jobs with one key start within `per`, in all workers together.

    `burst`: so many may start together, the others evenly. `window`: "sliding" counts the last `per` at any moment;
    "fixed" counts from the last full minute, hour, … by the clock of UTC. `feedback`: if a service asks a handler to
    wait, by RateLimited or Retry-After, no job with the key starts until then. `key` and `name`: as for Concurrency.
    """

    limit: int
    per: Duration
    key: Key = None
    burst: int | None = None
    window: Literal["sliding", "fixed"] = "sliding"
    name: str | None = None
    feedback: bool = False


Declared = Concurrency | RateLimit


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """A checked limit of one kind."""

    limit: Limit
    key: Key
    names_tenant: bool = False  # whether the key is a function with a parameter of this name

    @property
    def stored(self) -> KindLimit:
        return KindLimit(self.limit, self.key if isinstance(self.key, str) else None)

    def key_of(self, kind: str, payload: Mapping[str, Any], tenant: str | None) -> str | None:
        """The key of one job; PayloadInvalid names the limit."""
        if self.key is None:
            return ""
        if isinstance(self.key, str):
            value = tenant if self.key == "tenant" and "tenant" not in payload else payload.get(self.key)
            if value is None:
                return ""
            # As the stores read it from the payloads of jobs that name no key.
            text = str(value).lower() if isinstance(value, int | UUID) else value
            return _text(kind, self.limit.name, text)
        if self.names_tenant and "tenant" not in payload:
            payload = {**payload, "tenant": tenant}
        try:
            value = self.key(**payload)
        except Exception as error:
            raise PayloadInvalid(
                f"{kind}: the key of limit {self.limit.name} raised {type(error).__name__}: {error!s:.200}; it gets "
                "the payload's fields by name, as in key=lambda account, **_: account",
                self.limit.name,
            ) from error
        return None if value is None else _text(kind, self.limit.name, value)


def read_limits(
    kind: str, concurrency: Concurrency | Sequence[Concurrency] | None, rate: RateLimit | Sequence[RateLimit] | None
) -> tuple[LimitSpec, ...]:
    """Checks what a kind declares; each error names the parameter and the remedy."""
    specs = [_concurrency(kind, one) for one in _several(concurrency, Concurrency, "concurrency", "limit=5")]
    specs += [_rate(kind, one) for one in _several(rate, RateLimit, "rate", 'limit=100, per="1m"')]
    names = [spec.limit.name for spec in specs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"kind {kind} has two limits {twice!r}: give each a name of its own, as in name=…")
    return tuple(specs)


def _several(value: Any, wanted: type[Declared], what: str, example: str) -> Sequence[Any]:
    given = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
    for one in given:
        if not isinstance(one, wanted):
            raise UsageError(f"{what} {one!r:.80} must be a {wanted.__name__}, as in {wanted.__name__}({example})")
    return given


def _concurrency(kind: str, one: Concurrency) -> LimitSpec:
    name = _name(one.name, f"{kind}:concurrency")
    return _spec(Limit(name, whole_number(one.limit, "concurrency.limit", 1)), one.key, "concurrency")


def _rate(kind: str, one: RateLimit) -> LimitSpec:
    most = whole_number(one.limit, "rate.limit", 1)
    per = duration(one.per, "rate.per")
    if not SHORTEST <= per <= LONGEST:
        raise UsageError(f"rate.per {one.per!r} must be between 10 milliseconds and 366 days")
    if one.window not in ("sliding", "fixed"):
        raise UsageError(f'rate.window {one.window!r} must be "sliding" or "fixed"')
    if not isinstance(one.feedback, bool):
        raise UsageError(f"rate.feedback {one.feedback!r:.80} must be True or False")
    burst = None if one.burst is None else whole_number(one.burst, "rate.burst", 1, most, f" to {most}, its limit")
    limit = Limit(_name(one.name, f"{kind}:rate"), most, per, burst, one.window == "fixed", one.feedback)
    return _spec(limit, one.key, "rate")


def _spec(limit: Limit, key: Any, what: str) -> LimitSpec:
    if callable(key):
        return LimitSpec(limit, key, "tenant" in _parameters(key))
    return LimitSpec(limit, None if key is None else check_name(key, f"{what}.key"))


def _parameters(function: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some that are written in C have none
        return ()


def _name(given: Any, otherwise: str) -> str:
    return otherwise if given is None else check_name(given, "limit name")


def _text(kind: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > KEY_LIMIT or "\0" in value:
        raise PayloadInvalid(
            f"{kind}: the key of limit {name} is {value!r:.80}; it must be a text of at most {KEY_LIMIT} characters, "
            "or None for no limit",
            name,
        )
    return value
