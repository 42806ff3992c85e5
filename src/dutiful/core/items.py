"""Items that a job works through; each is in exactly one of four lists."""

from collections.abc import Iterable, Mapping
from typing import Any

from dutiful.core.errors import UsageError
from dutiful.core.json import clean
from dutiful.core.retry.error_info import message_of, storable, type_of

ItemName = str | int
NAME_LIMIT = 200
REASON_LIMIT = 500
LARGEST = 2**63


class ItemCounts:
    """Items start as in progress; each is marked once as completed, skipped or failed."""

    __slots__ = ("completed", "failed", "in_progress", "skipped", "total")

    def __init__(self, names: Iterable[ItemName] = ()) -> None:
        self.in_progress: dict[ItemName, None] = {}  # a set that keeps its order
        self.completed: dict[ItemName, None] = {}
        self.skipped: dict[ItemName, str] = {}
        self.failed: dict[ItemName, dict[str, str]] = {}  # type and message
        self.total = 0
        for name in names:
            self.start(name)

    @property
    def ended(self) -> int:
        return len(self.completed) + len(self.skipped) + len(self.failed)

    def start(self, name: ItemName) -> None:
        name = check_item(name)
        if self._ending(name) is not None or name in self.in_progress:
            raise UsageError(f"there is an item {name!r} already; give each a name of its own, as in each(…, name=…)")
        self.in_progress[name] = None
        self.total += 1

    def complete(self, name: ItemName) -> None:
        self.completed[self._take(name)] = None

    def skip(self, name: ItemName, reason: str) -> None:
        text = storable(str.__str__(str(reason)), REASON_LIMIT)
        self.skipped[self._take(name)] = text

    def fail(self, name: ItemName, error: BaseException | str) -> None:
        described = _describe(error)
        self.failed[self._take(name)] = described

    def as_dict(self) -> dict[str, Any]:
        """The counts as they are stored and shown."""
        return {
            "total": self.total,
            "in_progress": list(self.in_progress),
            "completed": list(self.completed),
            "skipped": [{"item": name, "reason": reason} for name, reason in self.skipped.items()],
            "failed": [{"item": name, "error": _line(error)} for name, error in self.failed.items()],
        }

    def errors(self) -> Mapping[ItemName, str]:
        return {name: _line(error) for name, error in self.failed.items()}

    def _take(self, name: ItemName) -> ItemName:
        name = plain(name)
        if name not in self.in_progress or isinstance(name, bool):
            ending = self._ending(name)
            what = "there is no such item; start it first" if ending is None else f"it has been {ending} already"
            raise UsageError(f"item {name!r} cannot be marked: {what}")
        del self.in_progress[name]
        return name

    def _ending(self, name: ItemName) -> str | None:
        for ending, group in (("completed", self.completed), ("skipped", self.skipped), ("failed", self.failed)):
            if name in group:
                return ending
        return None


def item_errors(groups: Iterable[ItemCounts], limit: int) -> list[dict[str, Any]]:
    """The first `limit` failures, as stored with a job: type, message and item."""
    errors = ({**error, "item": name} for group in groups for name, error in group.failed.items())
    return [error for error, _ in zip(errors, range(limit), strict=False)]


def plain(name: ItemName) -> ItemName:
    """A subclass of str or int (an enum, a slug) as plain str or int, because JSON and drivers take no others."""
    match name:
        case bool():
            return name
        case int():
            return int.__index__(name)
        case str():
            return str.__str__(name)
    return name


def check_item(name: ItemName) -> ItemName:
    name = plain(name)
    match name:
        case bool():
            pass
        case int() if -LARGEST <= name < LARGEST:
            return name
        case str() if 0 < len(name) <= NAME_LIMIT and clean(name, NAME_LIMIT) == name:
            return name
    raise UsageError(f"item {name!r:.80} must be a number, or a text of 1 to {NAME_LIMIT} characters; give name=…")


def _describe(error: BaseException | str) -> dict[str, str]:
    if isinstance(error, str):
        return {"type": "ItemFailed", "message": storable(str.__str__(error), REASON_LIMIT)}
    return {"type": type_of(error), "message": storable(message_of(error), REASON_LIMIT)}


def _line(error: Mapping[str, str]) -> str:
    kind, message = error["type"], error["message"]
    return message if kind == "ItemFailed" else f"{kind}: {message}" if message else kind
