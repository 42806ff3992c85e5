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

    @property
    def narrows_kinds(self) -> bool:
        return bool(self.kinds or self.tags or self.resources)

    @property
    def reserved(self) -> int:
        """How many slots are kept for tenants that run nothing here."""
        if not self.fair:
            return 0
        return min(1, self.slots - 1) if self.reserve is None else self.reserve


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
    if idle := [lane.name for lane in lanes if lane.slots < 1]:
        raise UsageError(f"setting lanes gives lane {idle[0]!r} no slots: give it at least 1, or leave it out")
    names = [lane.name for lane in lanes]
    if len(set(names)) < len(names):
        raise UsageError(f"setting lanes names a lane twice: {', '.join(names)}")
    if ANY in names:
        raise UsageError(f"setting lanes names a lane {ANY!r}, which means all lanes in a pause; name it otherwise")
    for lane in lanes:
        _check_reserve(lane)
        _check_lend(lane)


def _check_reserve(lane: LaneSettings) -> None:
    if lane.reserve is None:
        return
    if not lane.fair:
        raise UsageError(f"lane {lane.name!r} has a reserve, which only a fair lane keeps: add fair, or leave it out")
    if not 0 <= lane.reserve < lane.slots:
        raise UsageError(
            f"lane {lane.name!r} reserves {lane.reserve} of its {lane.slots} slots: it must be at least 0, and fewer "
            "than its slots"
        )


def _check_lend(lane: LaneSettings) -> None:
    if not lane.lend:
        return
    if lane.fair:
        raise UsageError(f"lane {lane.name!r} is fair, and lends no slots: leave out lend, or fair")
    if not 0 < lane.lend <= lane.slots:
        raise UsageError(f"lane {lane.name!r} lends {lane.lend} of its {lane.slots} slots: it must be from 0 to these")


def _from_table(name: str, lane: Any) -> LaneSettings:
    wrong = UsageError(f'setting lanes: lane {name!r} is {lane!r}; write {{slots = 3, queues = ["fast"]}}')
    if not isinstance(lane, Mapping) or type(lane.get("slots")) is not int:
        raise wrong
    given = dict(lane)
    for key, kind in (("fair", bool), ("reserve", int), ("lend", int)):
        if key in given and type(given[key]) is not kind:
            raise wrong
    if unknown := sorted(set(given) - _OPTIONS):
        raise UsageError(
            f"setting lanes: lane {name!r} has an unknown {unknown[0]!r}; there are: {', '.join(sorted(_OPTIONS))}"
        )
    for key in _LISTS & given.keys():
        if not isinstance(given[key], list | tuple) or not all(isinstance(name, str) and name for name in given[key]):
            raise wrong
        given[key] = tuple(given[key])
    given["queues"] = given.get("queues") or (ANY,)
    return LaneSettings(name, **given)


def _from_text(text: str) -> LaneSettings:
    name, _, rest = text.strip().partition("=")
    slots, _, rest = rest.partition(":")
    queues, _, options = rest.partition(":")
    if not name or not slots.strip().isdecimal():
        raise UsageError(f"lane {text.strip()!r} is not of the form {_FORM}")
    if int(slots) < 1:
        raise UsageError(f"lane {text.strip()!r} has no slots: give it 1 or more, or leave it out")
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


_LISTS = {"queues", "kinds", "tags", "resources", "tenants"}
_NARROWING = {
    "kind": "kinds",
    "tag": "tags",
    "resource": "resources",
    "tenant": "tenants",
}  # an option of a text, and its field
_OPTIONS = {field.name for field in fields(LaneSettings)} - {"name"}
