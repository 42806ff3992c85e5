"""Two stores that are called as one and must give the same answers."""

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from dutiful.core.errors import DataRefused
from dutiful.core.events import JobView, PostView
from dutiful.core.job import HeldClaim, JobRecord, NewJob
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.claims import Errors
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.metrics import Depth
from dutiful.store.webhooks import WebhookPost
from suite.builders import T0

# Where the stores may differ, as "Struct.field" or "subject.method", and why.
DIFFERENT = {
    "Stats.workers": "SQLite sees processes",
    "Survey.leading": "SQLite elects a process, Postgres a worker",
    "WorkerRecord.alive": "SQLite sees processes",
    "WorkerRecord.process": "it may change between two calls",
    "WorkerRecord.seen_at": "SQLite writes fewer heartbeats of idle workers",
    "events.changes_since": "reaches back by the age of open transactions, which only Postgres has",
    "events.marks": "each store makes its own",
    "locks.mode": "SQLite has no lock sessions",
    "metrics.roll_up": "steps differ in size",
    "promotion.unblock": "a hint for the next step; the jobs' rows are compared",
    "promotion.sweep": "a hint for the next step; the jobs' rows are compared",
    "dependents.release": "a hint for the next step; the jobs' rows are compared",
    "queries.health": "facts about one database",
}
# Differences that are to be removed: where, and what each store answers.
OPEN = [
    (r"\.options$", r"None", r".*unreadable.*"),
]
# What Postgres refuses and SQLite stores: the text "\\u0000", which jsonb cannot hold. Nothing is compared after that.
STRICTER = ("jobs.insert", "progress.report", "claims.complete")
UNORDERED = ("events.views",)  # the contract promises no order
MOVING = (
    "breakers",
    "claims",
    "control",
    "dependents",
    "jobs",
    "limits",
    "progress",
    "promotion",
    "retention",
    "schedules",
    "trees",
    "webhooks",
)
READS = {
    ("breakers", "all"), ("breakers", "kinds"), ("claims", "expired"), ("claims", "held_by"), ("claims", "peek"),
    ("claims", "peek_at"), ("control", "pauses"), ("dependents", "edges"), ("trees", "progress"),
    ("limits", "all"), ("progress", "phases"), ("webhooks", "posts"), ("webhooks", "all"),
}  # fmt: skip
GENERATED = ("WebhookPost.id", "PostView.id")  # ids that the store makes
JSON = ("payload", "subject", "options")  # text that a store may format
COUNTED = ("claim_id",)  # numbers that the store counts
WATCHED = 60
"""So many jobs are viewed after each call; a test with more compares their views at its end only."""


def _sorted(views: list[JobView]) -> list[JobView]:
    return sorted(views, key=lambda view: view.job.id)


class Disagreement(AssertionError):
    """The stores answered differently; the message says where."""


class TwinStore:
    """Makes each call on both stores, one after the other, and compares the answers and every job's rows.

    Answers are those of the first store; claim ids, places in line and generated ids of arguments are replaced by those
    that the second store gave for the same things. With methods in `undecided`, their answers are compared in any
    order if they are about the same jobs, else by their size; and of jobs, only how many are in each state.
    """

    def __init__(self, first: Store, second: Store, undecided: Iterable[str] = ()) -> None:
        self.stores = (first, second)
        self._undecided = frozenset(undecided)
        self._pairs: dict[str, dict[Any, Any]] = {}
        self._jobs: dict[UUID, None] = {}
        self._touched: set[str] = set()
        self._diverged = False
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()  # calls that a test makes at once come in the same order to both

    def __getattr__(self, subject: str) -> "_TwinSubject":
        return _TwinSubject(self, subject)

    @property
    def url(self) -> str:
        return self.stores[0].url

    def migration_sql(self) -> str:
        return "\n".join(store.migration_sql() for store in self.stores)

    async def open(self) -> None:
        for store in self.stores:
            await store.open()

    async def close(self) -> None:
        for store in self.stores:
            await store.close()

    async def migrate(self) -> list[str]:
        return [name for store in self.stores for name in await store.migrate()]

    async def call(self, subject: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async with self._lock:
            self._touched.add(subject)
            self._jobs.update(dict.fromkeys(_new_jobs((args, kwargs))))
            name = f"{subject}.{method}"
            first = await _outcome(self._method(0, subject, method)(*args, **kwargs))
            theirs = self._translate((args, kwargs))
            second = await _outcome(self._method(1, subject, method)(*theirs[0], **theirs[1]))
            if name in STRICTER and isinstance(first, DataRefused) and not isinstance(second, Exception):
                self._diverged = True
            if name in self._undecided:
                one, other = _by_job(first), _by_job(second)
                if one.keys() == other.keys():
                    self._compare(one, other, name)
                self._compare(_size(first), _size(second), f"size of {name}")
            elif name in UNORDERED and isinstance(first, list) and isinstance(second, list):
                self._compare(_sorted(first), _sorted(second), name)
            elif name not in DIFFERENT:
                self._compare(first, second, name)
            if (subject, method) not in READS and subject in MOVING and len(self._jobs) <= WATCHED:
                await self._compare_views(f"after {name}")
        if isinstance(first, Exception):
            raise first
        return first

    def call_sync(self, first: Callable[..., Any], second: Callable[..., Any], name: str, *args: Any, **kw: Any) -> Any:
        """As `call`, from a thread beside the event loop."""
        asyncio.run_coroutine_threadsafe(self._lock.acquire(), self._loop).result()
        try:
            answer = first(*args, **kw)
            theirs = self._translate((args, kw))
            self._compare(answer, second(*theirs[0], **theirs[1]), name)
        finally:
            self._loop.call_soon_threadsafe(self._lock.release)
        return answer

    @asynccontextmanager
    async def transaction(
        self, token: Any, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AsyncIterator["_TwinTransaction"]:
        """Both blocks end as the first does; what raises inside or at the end of one must raise in the other."""
        first, second = (store.claims.transaction(t, result, errors) for store, t in zip(
            self.stores, (token, self._translate(token)), strict=True))  # fmt: skip
        seen: list[Any] = []
        try:
            async with first as one:
                seen.append(one)
                try:
                    async with second as other:
                        yield _TwinTransaction(one, other)
                except BaseException as error:
                    seen.append(error)
                    raise
        except Exception as error:
            if len(seen) < 2:
                raise Disagreement(f"claims.transaction: {error!r} in the first store only") from error
            raise
        await self._compare_views("after claims.transaction")

    async def compare_all(self) -> None:
        """Compare all that the stores show of themselves, unless they have diverged before."""
        if self._diverged:
            return
        now = max((view.job.created_at for view in await self._views(0)), default=datetime.now(UTC))
        now += timedelta(minutes=5)
        await self._compare_views("in the end")
        touched = {*self._touched, "dead_letters", "webhooks", "queries"}
        for subject, method, args in (
            ("queries", "queues", ()),
            ("queries", "stats", (timedelta(days=7),)),
            ("queries", "check_places", ()),
            ("control", "pauses", ()),
            ("dead_letters", "search", (DeadLetterFilter(),)),
            ("webhooks", "all", ()),
            ("webhooks", "posts", ()),
            ("retention", "unsent", (1000,)),
            ("breakers", "all", ()),
            ("breakers", "kinds", ()),
            ("schedules", "all", ()),
            ("audit", "search", (AuditFilter(),)),
            ("audit", "sealed", (0, 1000)),
            ("alerts", "all", ()),
            ("tokens", "all", ()),
            ("metrics", "depths", ()),
            ("metrics", "counted", (timedelta(0),)),
            ("leadership", "survey", (UUID(int=1), timedelta(seconds=1))),
        ):
            if subject in touched:
                timed = method in {"stats", "counted", "survey"} or (subject, method) == ("breakers", "all")
                await self.call(subject, method, args, {"now": now} if timed else {})

    def _method(self, which: int, subject: str, method: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(getattr(self.stores[which], subject), method)
        return found

    async def _views(self, which: int) -> list[JobView]:
        views = await self.stores[which].events.views(list(self._jobs)[:500])
        return sorted(views, key=lambda view: view.job.id)

    async def _compare_views(self, where: str) -> None:
        first, second = await self._views(0), await self._views(1)
        if self._undecided:
            self._compare(_by_state(first), _by_state(second), f"{where}, jobs by state")
        else:
            self._compare(first, second, where)

    def _compare(self, first: Any, second: Any, where: str, field: str = "") -> None:
        """Compare two answers of the same thing; numbers and ids that each store makes are paired when first seen."""
        if self._diverged:
            return
        match first, second:
            case (msgspec.Struct(), msgspec.Struct()) if type(first) is type(second):
                name = type(first).__name__
                for part in first.__struct_fields__:
                    if (path := f"{name}.{part}") not in DIFFERENT:
                        one, other = getattr(first, part), getattr(second, part)
                        self._compare(one, other, f"{where}.{part}", path if path in GENERATED else part)
            case (dict(), dict()) if first.keys() == second.keys():
                for key in first:
                    self._compare(first[key], second[key], f"{where}[{key!r}]", str(key))
            case (list() | tuple(), list() | tuple()) if len(first) == len(second):
                for number, (one, other) in enumerate(zip(_ordered(first), _ordered(second), strict=True)):
                    self._compare(one, other, f"{where}[{number}]", field)
            case (frozenset(), frozenset()) if {self._paired(one) for one in first} == second:
                pass
            case (Exception(), Exception()) if type(first) is type(second):
                if not isinstance(first, DataRefused):  # which quotes the database
                    self._compare(str(first), str(second), f"{where} raised")
            case _ if field in (*GENERATED, *COUNTED) and first is not None and second is not None:
                if self._pairs.setdefault(field, {}).setdefault(first, second) != second and first != second:
                    self._disagree(f"{where}: {first!r} stood for another than {second!r}")
            case (float(), float()) if field == "waited":  # until now, by the real clock if the call had no `now`
                self._compare(T0 + timedelta(seconds=first), T0 + timedelta(seconds=second), where)
            case (str(), str()) if field in JSON and first != second:
                self._compare(msgspec.json.decode(first), msgspec.json.decode(second), where)
            case _:
                equal = first == second or (_of_now(first) and _of_now(second))
                if not equal and not _is_open(where, first, second):
                    self._disagree(f"{where}: {first!r} and {second!r}")

    def _disagree(self, text: str) -> NoReturn:
        self._diverged = True
        raise Disagreement(text)

    def _translate(self, value: Any, field: str = "") -> Any:
        """An argument with the ids and numbers of the second store."""
        match value:
            case msgspec.Struct():
                parts = {part: getattr(value, part) for part in value.__struct_fields__}
                changed = {part: self._translate(old, part) for part, old in parts.items()}
                return msgspec.structs.replace(value, **changed)
            case dict():
                return {key: self._translate(part, key) for key, part in value.items()}
            case list():
                return [self._translate(part) for part in value]
            case tuple() if type(value) is tuple:
                return tuple(self._translate(part) for part in value)
            case UUID():
                return self._paired(value)
            case int() if field in COUNTED:
                return self._pairs.get(field, {}).get(value, value)
            case _:
                return value

    def _paired(self, value: Any) -> Any:
        fields: Iterable[str] = ("claim_id",) if isinstance(value, int) else GENERATED
        for field in fields:
            value = self._pairs.get(field, {}).get(value, value)
        return value


class _TwinSubject:
    def __init__(self, twin: TwinStore, subject: str) -> None:
        self._twin = twin
        self._subject = subject

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if (self._subject, method) == ("claims", "transaction"):
            return self._twin.transaction
        if (self._subject, method) == ("claims", "renewer"):
            return lambda: _TwinRenewer(self._twin)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._twin.call(self._subject, method, args, kwargs)

        return call


class _TwinRenewer:
    def __init__(self, twin: TwinStore) -> None:
        self._twin = twin
        self._renewers = [store.claims.renewer() for store in twin.stores]

    def __getattr__(self, method: str) -> Callable[..., Any]:
        first, second = (getattr(renewer, method) for renewer in self._renewers)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._twin.call_sync(first, second, f"renewer.{method}", *args, **kwargs)

        return call


class _TwinTransaction:
    def __init__(self, *transactions: Any) -> None:
        self._transactions = transactions

    async def execute(self, statement: str, *args: Any) -> None:
        for transaction in self._transactions:
            await transaction.execute(statement, *args)


def _new_jobs(value: Any) -> Iterable[UUID]:
    """The ids of all jobs that an argument asks for."""
    match value:
        case NewJob():
            yield value.id
        case msgspec.Struct():
            for part in value.__struct_fields__:
                yield from _new_jobs(getattr(value, part))
        case Mapping():
            yield from _new_jobs(tuple(value.values()))
        case list() | tuple():
            for part in value:
                yield from _new_jobs(part)


async def _outcome(call: Any) -> Any:
    """What a call returns or raises."""
    try:
        return await call if inspect.isawaitable(call) else call
    except Exception as error:
        return error


def _ordered(values: Sequence[Any]) -> Sequence[Any]:
    """Sort what a store returns in any order; posts by content, because their ids are random."""
    match values:
        case [WebhookPost() | PostView(), *_]:
            return sorted(values, key=lambda post: (str(getattr(post, "job_id", "")), post.url))
        case [JobRecord(finished_at=datetime()), *_]:
            return sorted(values, key=lambda record: record.id)
        case [HeldClaim(), *_]:
            return sorted(values, key=lambda one: one.job_id)
        case [Depth(), *_]:
            return sorted(values, key=lambda depth: (depth.queue, depth.kind, depth.state))
    return values


def _by_job(answer: Any) -> dict[UUID, Any]:
    return {one.job_id: one for one in answer} if isinstance(answer, list) else {}


def _size(answer: Any) -> Any:
    """How many an answer has; an exception or a single value is itself."""
    return len(answer) if isinstance(answer, list | tuple | frozenset) else type(answer)


def _by_state(views: Iterable[JobView]) -> dict[str, int]:
    return dict(Counter(view.job.state.value for view in views))


def _is_open(where: str, first: Any, second: Any) -> bool:
    one, other = _time(first), _time(second)
    if one is not None and one == other:
        return True  # in JSON, Postgres writes +00:00 and SQLite Z
    return any(
        re.search(place, where) and re.fullmatch(pattern, str(first)) and re.fullmatch(expected, str(second))
        for place, pattern, expected in OPEN
    )


def _of_now(value: Any) -> bool:
    """Whether it is a time by the real clock, which holds for calls without `now`."""
    time = _time(value)
    return time is not None and abs(time - datetime.now(UTC)) < timedelta(hours=1)


def _time(value: Any) -> datetime | None:
    """A time, which is text in JSON."""
    if isinstance(value, datetime):
        return value
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
