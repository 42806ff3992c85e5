"""Lanes of a worker as settings declare them: as text, as a table, or as LaneSettings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dutiful.core.errors import UsageError

ANY = "*"
_FORM = 'name=slots:queue,queue:option,option, as in "fast=3:fast" or "general=5:*:fair,reserve=2"'


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """A lane of a worker: its slots, and the queues they serve; ("*",) is any.

    `kinds`, `tags`, `resources` and `tenants` narrow it: to jobs of these kinds, of kinds with one of these tags, of
    kinds whose handlers ask for one of these resources, of these tenants. `lend`: so many of its slots run jobs of
    other lanes while it has none.
    `fair`: tenants take turns, so that none waits for another's backlog. Then `reserve` slots are kept for tenants that
    run nothing in the lane; None: one, if the lane has several.
    """

    name: str
    slots: int
    queues: tuple[str, ...] = (ANY,)
    fair: bool = False
    reserve: int | None = None
    kinds: tuple[str, ...] = ()  # these four: empty for any
    tags: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    lend: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"a lane has the name {self.name!r:.80}: it must be a text, as in LaneSettings('fast', 3)")
        self._check_number("slots", 1)
        if not isinstance(self.fair, bool):
            raise UsageError(f"lane {self.name!r} has fair {self.fair!r:.80}: it must be True or False")
        for name in _LISTS:
            names = getattr(self, name)
            if not isinstance(names, list | tuple) or not all(isinstance(one, str) and one for one in names):
                raise UsageError(f"lane {self.name!r} has {name} {names!r:.80}: write names, as in {name}=('one',)")
            object.__setattr__(self, name, tuple(names))
        if not self.queues:
            raise UsageError(f"lane {self.name!r} has no queues: name some, or leave them out for any")
        if self.reserve is not None:
            self._check_reserve()
        self._check_number("lend", 0)
        if self.lend and self.fair:
            raise UsageError(f"lane {self.name!r} is fair, and lends no slots: leave out lend, or fair")
        if self.lend > self.slots:
            raise UsageError(
                f"lane {self.name!r} lends {self.lend} of its {self.slots} slots: it must be from 0 to these"
            )

    def _check_number(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < least:
            raise UsageError(f"lane {self.name!r} has {name} {value!r:.80}: it must be a whole number from {least}")

    def _check_reserve(self) -> None:
        self._check_number("reserve", 0)
        if not self.fair:
            raise UsageError(
                f"lane {self.name!r} has a reserve, which only a fair lane keeps: add fair, or leave it out"
            )
        if self.reserved >= self.slots:
            raise UsageError(
                f"lane {self.name!r} reserves {self.reserve} of its {self.slots} slots: it must be fewer than its slots"
            )

    @property
    def narrows_kinds(self) -> bool:
        return bool(self.kinds or self.tags or self.resources)

    @property
    def reserved(self) -> int:
        """How many slots are kept for tenants that run nothing here."""
        if not self.fair:
            return 0
        return min(1, self.slots - 1) if self.reserve is None else self.reserve


_LISTS = ("queues", "kinds", "tags", "resources", "tenants")
DEFAULT_LANES = (LaneSettings("fast", 3, ("fast",)), LaneSettings("general", 5))


def read_lanes(value: Any) -> tuple[LaneSettings, ...]:
    """`"fast=3:fast; general=5:*"`, a table {fast = {slots = 3, queues = ["fast"]}}, or LaneSettings themselves."""
    if isinstance(value, str):
        return tuple(_from_text(part) for part in value.split(";") if part.strip())
    if isinstance(value, Mapping):
        return tuple(_from_table(name, lane) for name, lane in value.items())
    if not isinstance(value, list | tuple) or not all(isinstance(lane, LaneSettings) for lane in value):
        raise UsageError(f'setting lanes is {value!r}: write it as "fast=3:fast; general=5:*"')
    return tuple(value)


def check_lanes(lanes: Sequence[LaneSettings]) -> None:
    if not lanes:
        raise UsageError("setting lanes is empty: a worker needs at least one lane")
    names = [lane.name for lane in lanes]
    if len(set(names)) < len(names):
        raise UsageError(f"setting lanes names a lane twice: {', '.join(names)}")
    if ANY in names:
        raise UsageError(f"setting lanes names a lane {ANY!r}, which means all lanes in a pause; name it otherwise")


def _from_table(name: str, lane: Any) -> LaneSettings:
    if not isinstance(lane, Mapping) or "slots" not in lane:
        raise UsageError(f'setting lanes: lane {name!r} is {lane!r}; write {{slots = 3, queues = ["fast"]}}')
    if unknown := sorted(set(lane) - _OPTIONS):
        raise UsageError(
            f"setting lanes: lane {name!r} has an unknown {unknown[0]!r}; there are: {', '.join(sorted(_OPTIONS))}"
        )
    return LaneSettings(name, **{**lane, "queues": lane.get("queues") or (ANY,)})


def _from_text(text: str) -> LaneSettings:
    name, _, rest = text.strip().partition("=")
    slots, _, rest = rest.partition(":")
    queues, _, options = rest.partition(":")
    if not name or not slots.strip().isdecimal():
        raise UsageError(f"lane {text.strip()!r} is not of the form {_FORM}")
    named = tuple(q.strip() for q in queues.split(",") if q.strip())
    given = _options(text.strip(), [option.strip() for option in options.split(",") if option.strip()])
    return LaneSettings(name.strip(), int(slots), named or (ANY,), **given)


def _options(lane: str, options: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if option == "fair":
            given["fair"] = True
        elif key in ("reserve", "lend") and value.isdecimal():
            given[key] = int(value)
        elif key in _NARROWING and value:
            given[_NARROWING[key]] = (*given.get(_NARROWING[key], ()), value)
        else:
            raise UsageError(
                f"lane {lane!r} has an option {option!r}; there are: fair, reserve=NUMBER, lend=NUMBER, kind=NAME, "
                "tag=NAME, resource=NAME, tenant=NAME, the last four also repeated"
            )
    return given


_NARROWING = {
    "kind": "kinds",
    "tag": "tags",
    "resource": "resources",
    "tenant": "tenants",
}  # an option of a text, and its field
_OPTIONS = {field.name for field in fields(LaneSettings)} - {"name"}
