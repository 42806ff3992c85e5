"""The logic of watching, without a store: what is told, what is told once, and what is given up."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest

from dutiful.core.errors import StoreUnavailable, StreamOverflow
from dutiful.core.event import Event, EventType, JobView
from dutiful.core.job import JobRecord, Progress
from dutiful.core.transitions import State
from dutiful.deliveries.in_process import InProcess
from dutiful.watcher import EventStream, Gap, Item, Wanted, Watcher, broad, watcher
from dutiful.watcher.history import PAGE
from dutiful.watcher.seen import Seen
from dutiful.watching import Stir, Stirred, Tombstone
from dutiful.web.bookmark import Bookmark
from dutiful.web.sse import Encoded

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def view(job_id: UUID, made: float, *, ended: float | None = None, progress: float | None = None) -> JobView:
    record = JobRecord(
        id=job_id,
        kind="work",
        queue="default",
        state=State.READY if ended is None else State.COMPLETED,
        payload={},
        priority=100,
        attempt=0,
        crashes=0,
        max_attempts=5,
        created_at=at(made),
        run_at=None,
        finished_at=None if ended is None else at(ended),
        progress=None if progress is None else Progress(updated_at=at(progress)),
    )
    return JobView(job=record)


JOB = UUID(int=1)


def event(key: str, seconds: float = 0, *, type: EventType = EventType.STARTED) -> Event:
    return Event(type=type, key=key, at=at(seconds), job_id=JOB, kind="work", queue="default", correlation_id="c")


class Fake:
    """What a store knows, in a dictionary; `stirred` tells of all of it, two at a time if `cut`."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, JobView] = {}
        self.now = 0.0
        self.looks: list[int] = []
        self.listeners: set[UUID] = set()
        self.graves: list[Tombstone] = []
        self.away = self.cut = False

    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        self.listeners.add(listener_id)

    async def unlisten(self, listener_id: UUID) -> None:
        self.listeners.discard(listener_id)

    async def listened(self, *, now: datetime | None = None) -> bool:
        return bool(self.listeners)

    async def views(self, job_ids: Sequence[UUID]) -> list[JobView]:
        if self.away:
            raise StoreUnavailable("gone fishing")
        self.looks.append(len(job_ids))
        return [self.jobs[job_id] for job_id in job_ids if job_id in self.jobs]

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        return [grave for grave in self.graves if grave.job_id in job_ids]

    async def stirred(self, since: datetime | None, limit: int) -> Stirred:
        if self.away:
            raise StoreUnavailable("gone fishing")
        stirs = [Stir(job_id, f"{v.job.finished_at} {v.job.progress}") for job_id, v in self.jobs.items()]
        return Stirred([] if since is None else stirs, [], at(self.now), self.cut and since is not None)


@pytest.fixture(autouse=True)
def hurried() -> Iterator[None]:
    with patch.multiple(watcher, SOONEST=0.001, LOOK=0.01):
        yield


async def read(stream: EventStream, count: int) -> list[Item]:
    async with asyncio.timeout(5):
        return [await anext(stream) for _ in range(count)]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 (what it waits for tells nobody)
            await asyncio.sleep(0.001)


# --- a stream


async def test_a_progress_event_takes_the_place_of_an_unread_one_behind_what_came_between() -> None:
    stream = EventStream(Wanted())
    first = event("progress:1", 1, type=EventType.PROGRESS)
    between, last = event("started:1", 2), event("progress:2", 3, type=EventType.PROGRESS)

    stream.offer([first, between, last], None)

    assert await read(stream, 2) == [between, last]


async def test_a_reader_that_is_too_slow_gets_what_was_buffered_and_then_hears_why() -> None:
    stream = EventStream(Wanted(), limit=3)
    events = [event(f"started:{n}", n) for n in range(5)]

    stream.offer(events[:4], None)
    assert not stream.dropped, "what one look has found is taken whole"
    stream.offer(events[4:], None)

    assert stream.dropped and await read(stream, 4) == events[:4]
    with pytest.raises(StreamOverflow, match="subscribe again"):
        await anext(stream)


async def test_a_filter_is_all_that_is_given() -> None:
    started = event("started:1")
    assert Wanted(kinds=frozenset({"work"}), types=frozenset({EventType.STARTED})).wants(started)
    for other in (
        Wanted(kinds=frozenset({"play"})),
        Wanted(queues=frozenset({"fast"})),
        Wanted(tenant="acme"),
        Wanted(correlation_id="d"),
        Wanted(kinds=frozenset({"work"}), types=frozenset({EventType.FAILED})),
    ):
        assert not other.wants(started)


# --- what was seen


def test_a_job_that_nobody_remembers_is_told_of_from_the_cutoff_on() -> None:
    seen, job_id = Seen(), uuid4()
    stirs = [Stir(job_id, "end")]

    news = seen.news(seen.fresh(stirs), {job_id: view(job_id, 0, ended=9)}, [], at(5))

    assert [e.type for e in news] == [EventType.COMPLETED]
    assert seen.fresh(stirs) == {}, "the same mark needs no second look"
    assert seen.news(seen.fresh([Stir(job_id, "post")]), {job_id: view(job_id, 0, ended=9)}, [], at(5)) == []


def test_a_fact_that_comes_to_light_late_is_told_of_a_job_that_is_known() -> None:
    seen, job_id = Seen(), uuid4()
    seen.news({job_id: frozenset({"a"})}, {job_id: view(job_id, 0)}, [], at(0))

    news = seen.news({job_id: frozenset({"b"})}, {job_id: view(job_id, 0, ended=3)}, [], at(5))

    assert [e.key for e in news] == ["completed"]


def test_jobs_are_forgotten_when_there_are_many_but_none_that_could_be_told_twice() -> None:
    seen = Seen(limit=2)
    jobs = [uuid4() for _ in range(4)]
    for second, job_id in enumerate(jobs):
        seen.news({job_id: frozenset({"a"})}, {job_id: view(job_id, second)}, [], at(0))
    assert len(seen) == 4, "all of them are younger than the cutoff"

    again = seen.news({jobs[0]: frozenset({"b"})}, {jobs[0]: view(jobs[0], 0)}, [], at(2.5))

    assert again == [] and len(seen) == 2


def test_a_tombstone_is_told_once() -> None:
    seen = Seen()
    grave = Tombstone(
        job_id=uuid4(), kind="work", queue="q", tenant=None, correlation_id="c", deleted_at=at(1), told_at=at(2)
    )

    assert [e.type for e in seen.news({}, {}, [grave], at(0))] == [EventType.DELETED]
    assert seen.news({}, {}, [grave], at(0)) == []


# --- the watcher


async def test_two_hundred_subscribers_of_single_jobs_are_served_by_one_look() -> None:
    fake = Fake()
    jobs = [uuid4() for _ in range(200)]
    fake.jobs = {job_id: view(job_id, 0) for job_id in jobs}
    watching = Watcher(fake, InProcess())
    streams = [watching.subscribe(Wanted(jobs=frozenset({job_id})), snapshot=False) for job_id in jobs]
    opened = [await stream.__aenter__() for stream in streams]
    await until(lambda: fake.looks[-1] == 200)
    fake.looks.clear()

    fake.jobs = {job_id: view(job_id, 0, ended=1) for job_id in jobs}
    for stream in opened:
        (item,) = await read(stream, 1)
        assert item.type == EventType.COMPLETED

    assert set(fake.looks) == {200}, "every look is at all of them at once"
    for context in streams:
        await context.__aexit__(None, None, None)


@pytest.mark.req("J59", "J60")
async def test_the_last_to_leave_ends_the_watch() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    watching = Watcher(fake, InProcess())
    before = asyncio.all_tasks()

    async with watching.subscribe(Wanted()), watching.subscribe(Wanted(jobs=frozenset({job_id}))):
        await until(lambda: fake.listeners)
        assert len(watching.streams) == 2

    assert watching.streams == set() and fake.listeners == set()
    await until(lambda: asyncio.all_tasks() == before)


async def test_a_store_that_was_away_costs_no_event(caplog: pytest.LogCaptureFixture) -> None:
    fake, job_id, other = Fake(), uuid4(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    watching = Watcher(fake, InProcess())
    async with (
        watching.subscribe(Wanted(jobs=frozenset({job_id})), snapshot=False) as one,
        watching.subscribe(Wanted()) as everything,
    ):
        fake.away = True
        await until(lambda: "gone fishing" in caplog.text)
        fake.jobs = {job_id: view(job_id, 0, ended=1), other: view(other, 2)}
        await asyncio.sleep(0.05)
        fake.away = False

        assert [item.type for item in await read(one, 1)] == ["completed"]
        assert [item.type for item in await read(everything, 2)] == ["completed", "enqueued"]
    assert caplog.text.count("gone fishing") == 1


async def test_a_watched_job_that_went_is_told_of_however_many_went_with_it() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0, ended=1)}
    async with Watcher(fake, InProcess()).subscribe(Wanted(jobs=frozenset({job_id})), snapshot=False) as stream:
        fake.jobs = {}
        fake.graves = [
            Tombstone(
                job_id=gone, kind="work", queue="q", tenant=None, correlation_id="c", deleted_at=at(2), told_at=at(2)
            )
            for gone in (*(uuid4() for _ in range(PAGE)), job_id)
        ]
        assert [(item.type, item.job_id) for item in await read(stream, 1) if isinstance(item, Event)] == [
            (EventType.DELETED, job_id)
        ]


async def test_whoever_cannot_join_hears_why() -> None:
    fake = Fake()
    fake.away = True
    with pytest.raises(StoreUnavailable):
        async with Watcher(fake, InProcess()).subscribe(Wanted()):
            pass


async def test_what_happened_before_a_stream_began_is_not_told() -> None:
    fake, old, new = Fake(), uuid4(), uuid4()
    fake.jobs = {old: view(old, 0)}
    watching = Watcher(fake, InProcess())
    async with watching.subscribe(Wanted()) as first:
        fake.jobs[new] = view(new, 0.5)
        assert [item.type for item in await read(first, 1)] == ["enqueued"]
        async with watching.subscribe(Wanted()) as second:
            fake.jobs[old] = view(old, 0, ended=1)

            for stream in (first, second):
                assert [item.type for item in await read(stream, 1)] == ["completed"]


async def test_a_watcher_that_cannot_keep_pace_skips_and_says_so() -> None:
    fake = Fake()
    watching = Watcher(fake, InProcess())
    with patch.object(broad, "BEHIND", 3):
        async with watching.subscribe(Wanted()) as stream:
            fake.now, fake.cut = 60.0, True

            (item,) = await read(stream, 1)

            assert isinstance(item, Gap) and item.until == at(60)


async def test_a_watched_job_that_vanishes_without_a_trace_is_told_of_in_the_end() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    with patch("dutiful.watcher.singles.PATIENCE", 0.05):
        async with Watcher(fake, InProcess()).subscribe(Wanted(jobs=frozenset({job_id}))) as stream:
            fake.jobs.clear()
            async with asyncio.timeout(5):
                assert [item.type async for item in stream] == ["snapshot", "deleted"], "and so the stream ends"


async def test_closing_ends_every_stream_but_what_is_buffered_can_be_read() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    watching = Watcher(fake, InProcess())
    async with watching.subscribe(Wanted(jobs=frozenset({job_id}))) as stream:
        await watching.close()
        async with asyncio.timeout(5):
            assert [item.type async for item in stream] == ["snapshot"]


async def test_a_cancelled_read_loses_nothing() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    async with Watcher(fake, InProcess()).subscribe(Wanted(), since=at(-10)) as stream:
        told: list[Item] = []
        for _ in range(20):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0005):
                    told.append(await anext(stream))
        told += await read(stream, 1 - len(told))
    assert [item.type for item in told] == ["enqueued"]


# --- a bookmark


def test_a_bookmark_knows_what_was_read_and_where_to_go_on() -> None:
    mark = Bookmark(at(0))
    mark.move(at(0), event("a", 1))
    mark.move(at(2), event("b", 3))

    again = Bookmark.parse(str(mark))

    assert again is not None and again.since == at(2)
    assert again.has(event("b", 3)) and not again.has(event("a", 1)) and not again.has(event("c", 3))
    again.move(at(2.5), event("c", 4))
    assert again.has(event("b", 3)), "it is kept for as long as it may come again"
    for foreign in (None, "", "abc", "-", "１-x", "9" * 40):
        assert Bookmark.parse(foreign) is None


# --- bounds


async def test_a_look_that_took_long_does_not_silence_everybody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, paused = Fake(), list[float]()
    fake.jobs[JOB] = view(JOB, 0)

    async def slow(job_ids: Sequence[UUID]) -> list[JobView]:
        await asyncio.sleep(0.02)  # twice the longest pause
        return [fake.jobs[JOB]]

    async def wait(event: asyncio.Event, seconds: float) -> None:
        paused.append(seconds)
        await asyncio.sleep(0.001)

    monkeypatch.setattr(fake, "views", slow)
    monkeypatch.setattr(watcher, "_wait", wait)
    watching = Watcher(fake, InProcess())
    async with watching.subscribe(Wanted(jobs=frozenset({JOB}))):
        await until(lambda: len(paused) > 4)
    assert max(paused) <= watcher.LOOK


async def test_whoever_joins_while_the_last_look_is_being_given_up_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, hanging = Fake(), asyncio.Event()
    fake.jobs[JOB] = view(JOB, 0)
    views = fake.views

    async def stuck(job_ids: Sequence[UUID]) -> list[JobView]:
        hanging.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(watcher, "LAST_WORDS", 0.01)
    watching = Watcher(fake, InProcess())
    wanted = Wanted(jobs=frozenset({JOB}))
    async with watching.subscribe(wanted, snapshot=False):
        monkeypatch.setattr(fake, "views", stuck)
        await asyncio.wait_for(hanging.wait(), 5)
        monkeypatch.setattr(fake, "views", views)
    async with watching.subscribe(wanted, snapshot=False) as stream:  # its look is cancelled, and may not be over
        fake.jobs[JOB] = view(JOB, 0, ended=1)
        (item,) = await read(stream, 1)
    assert item.type == "completed"


def test_many_streams_of_much_make_the_next_look_read_less() -> None:
    page = broad.Broad(Fake())
    page.pace(broad.FAN_OUT + 1)
    assert page._page == PAGE // 2
    for _ in range(20):
        page.pace(broad.FAN_OUT + 1)
    assert page._page == broad.LEAST
    for _ in range(20):
        page.pace(0)
    assert page._page == PAGE


def test_frames_are_kept_by_their_size() -> None:
    frames = Encoded(limit=2_000, largest=500)
    small = [event(f"started:{n}", n) for n in range(50)]
    for one in small:
        assert frames.frame(one) == frames.frame(one)
    assert 0 < frames._size <= 2_000
    before = frames._size
    frames.frame(event("x" * 600))
    assert frames._size == before
