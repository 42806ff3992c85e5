"""The logic of the watcher, without a store: what is sent, what is sent once, and what is dropped."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest

from dutiful.core.errors import StoreUnavailable, StreamOverflow
from dutiful.core.events import Event, EventType, JobView, LeftOut
from dutiful.core.job import JobRecord, Progress
from dutiful.core.states import State
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.events import EventStream, Gap, Item, Snapshot, Subscription, Watcher, feeds, watcher
from dutiful.events.history import PAGE, SeenEvents
from dutiful.store.events import JobChange, JobChanges, Tombstone
from dutiful.web.sse import Bookmark, Encoded

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
    """What a store knows, in a dictionary; `changes_since` returns all of it, two at a time if `cut`."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, JobView] = {}
        self.now = 0.0
        self.polls: list[int] = []
        self.views_read: list[int] = []
        self.results: dict[UUID, str] = {}
        self.listeners: set[UUID] = set()
        self.deleted: list[Tombstone] = []
        self.away = self.cut = False
        self.refused = 0  # how often it was asked while it was away

    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        self.listeners.add(listener_id)

    async def unlisten(self, listener_id: UUID) -> None:
        self.listeners.discard(listener_id)

    async def has_listeners(self, *, now: datetime | None = None) -> bool:
        return bool(self.listeners)

    async def marks(self, job_ids: Sequence[UUID]) -> list[JobChange]:
        self._answer()
        self.polls.append(len(job_ids))
        return [JobChange(job_id, repr(self.jobs[job_id])) for job_id in job_ids if job_id in self.jobs]

    async def views(self, job_ids: Sequence[UUID], *, largest: int | None = None) -> list[JobView]:
        self._answer()
        self.views_read.append(len(job_ids))
        return [self.jobs[job_id] for job_id in job_ids if job_id in self.jobs]

    async def result(self, job_id: UUID, left_out: LeftOut) -> str | None:
        self._answer()
        return self.results.get(job_id)

    def _answer(self) -> None:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("gone fishing")

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        return [tombstone for tombstone in self.deleted if tombstone.job_id in job_ids]

    async def changes_since(self, since: datetime | None, limit: int, *, tenant: str | None = None) -> JobChanges:
        self._answer()
        changes = [JobChange(job_id, f"{v.job.finished_at} {v.job.progress}") for job_id, v in self.jobs.items()]
        return JobChanges([] if since is None else changes, [], at(self.now), self.cut and since is not None)


@pytest.fixture(autouse=True)
def hurried() -> Iterator[None]:
    with patch.multiple(watcher, MIN_PAUSE=0.001, POLL_INTERVAL=0.01):
        yield


async def read(stream: EventStream, count: int) -> list[Item]:
    async with asyncio.timeout(5):
        return [await anext(stream) for _ in range(count)]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 (what it waits for gives no signal)
            await asyncio.sleep(0.001)


# --- a stream


async def test_a_progress_event_takes_the_place_of_an_unread_one_behind_what_came_between() -> None:
    stream = EventStream(Subscription())
    first = event("progress:1", 1, type=EventType.PROGRESS)
    between, last = event("started:1", 2), event("progress:2", 3, type=EventType.PROGRESS)

    stream.offer([first, between, last], None)

    assert await read(stream, 2) == [between, last]


async def test_a_reader_that_is_too_slow_gets_what_was_buffered_and_then_an_error() -> None:
    stream = EventStream(Subscription(), limit=3)
    events = [event(f"started:{n}", n) for n in range(5)]

    stream.offer(events[:4], None)
    assert not stream.dropped, "what one poll has found is buffered whole"
    stream.offer(events[4:], None)

    assert stream.dropped and await read(stream, 4) == events[:4]
    with pytest.raises(StreamOverflow, match="subscribe again"):
        await anext(stream)


async def test_a_filter_is_all_that_is_given() -> None:
    started = event("started:1")
    assert Subscription(kinds=frozenset({"work"}), types=frozenset({EventType.STARTED})).wants(started)
    for other in (
        Subscription(kinds=frozenset({"play"})),
        Subscription(queues=frozenset({"fast"})),
        Subscription(tenant="acme"),
        Subscription(correlation_id="d"),
        Subscription(kinds=frozenset({"work"}), types=frozenset({EventType.FAILED})),
    ):
        assert not other.wants(started)


# --- what was seen


def test_events_of_an_unknown_job_are_sent_from_the_cutoff_on() -> None:
    seen, job_id = SeenEvents(), uuid4()
    changes = [JobChange(job_id, "end")]

    events = seen.new_events(seen.unseen(changes), {job_id: view(job_id, 0, ended=9)}, [], at(5))

    assert [e.type for e in events] == [EventType.COMPLETED]
    assert seen.unseen(changes) == {}, "the same mark needs no second read"
    assert (
        seen.new_events(seen.unseen([JobChange(job_id, "post")]), {job_id: view(job_id, 0, ended=9)}, [], at(5)) == []
    )


def test_an_event_of_a_known_job_that_becomes_visible_late_is_sent() -> None:
    seen, job_id = SeenEvents(), uuid4()
    seen.new_events({job_id: frozenset({"a"})}, {job_id: view(job_id, 0)}, [], at(0))

    events = seen.new_events({job_id: frozenset({"b"})}, {job_id: view(job_id, 0, ended=3)}, [], at(5))

    assert [e.key for e in events] == ["completed"]


def test_jobs_are_dropped_when_there_are_many_but_none_that_could_be_sent_twice() -> None:
    seen = SeenEvents(limit=2)
    jobs = [uuid4() for _ in range(4)]
    for second, job_id in enumerate(jobs):
        seen.new_events({job_id: frozenset({"a"})}, {job_id: view(job_id, second)}, [], at(0))
    assert len(seen) == 4, "all of them are younger than the cutoff"

    again = seen.new_events({jobs[0]: frozenset({"b"})}, {jobs[0]: view(jobs[0], 0)}, [], at(2.5))

    assert again == [] and len(seen) == 2


def test_a_tombstone_is_sent_once() -> None:
    seen = SeenEvents()
    tombstone = Tombstone(
        job_id=uuid4(), kind="work", queue="q", tenant=None, correlation_id="c", deleted_at=at(1), sent_at=at(2)
    )

    assert [e.type for e in seen.new_events({}, {}, [tombstone], at(0))] == [EventType.DELETED]
    assert seen.new_events({}, {}, [tombstone], at(0)) == []


# --- the watcher


async def test_two_hundred_subscribers_of_single_jobs_are_served_by_one_poll() -> None:
    fake = Fake()
    jobs = [uuid4() for _ in range(200)]
    fake.jobs = {job_id: view(job_id, 0) for job_id in jobs}
    watching = Watcher(fake, InProcessDelivery())
    streams = [watching.subscribe(Subscription(jobs=frozenset({job_id})), snapshot=False) for job_id in jobs]
    opened = [await stream.__aenter__() for stream in streams]
    await until(lambda: fake.polls[-1:] == [200])
    fake.polls.clear()

    fake.jobs = {job_id: view(job_id, 0, ended=1) for job_id in jobs}
    for stream in opened:
        (item,) = await read(stream, 1)
        assert item.type == EventType.COMPLETED

    assert set(fake.polls) == {200}, "every poll reads all of them at once"
    for context in streams:
        await context.__aexit__(None, None, None)


@pytest.mark.req("J59", "J60")
async def test_the_last_to_leave_ends_the_watch() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    watching = Watcher(fake, InProcessDelivery())
    before = asyncio.all_tasks()

    async with watching.subscribe(Subscription()), watching.subscribe(Subscription(jobs=frozenset({job_id}))):
        await until(lambda: fake.listeners)
        assert len(watching.streams) == 2

    assert watching.streams == set() and fake.listeners == set()
    await until(lambda: asyncio.all_tasks() == before)


async def test_a_store_that_was_away_costs_no_event(caplog: pytest.LogCaptureFixture) -> None:
    fake, job_id, other = Fake(), uuid4(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    watching = Watcher(fake, InProcessDelivery())
    async with (
        watching.subscribe(Subscription(jobs=frozenset({job_id})), snapshot=False) as one,
        watching.subscribe(Subscription()) as everything,
    ):
        fake.away = True
        await until(lambda: "gone fishing" in caplog.text)
        fake.jobs = {job_id: view(job_id, 0, ended=1), other: view(other, 2)}
        await until(lambda: fake.refused >= 3)  # of which one is reported
        fake.away = False

        assert [item.type for item in await read(one, 1)] == ["completed"]
        assert [item.type for item in await read(everything, 2)] == ["completed", "enqueued"]
    assert caplog.text.count("gone fishing") == 1


async def test_the_deletion_of_a_watched_job_is_sent_however_many_are_deleted_with_it() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0, ended=1)}
    async with Watcher(fake, InProcessDelivery()).subscribe(
        Subscription(jobs=frozenset({job_id})), snapshot=False
    ) as stream:
        fake.jobs = {}
        fake.deleted = [
            Tombstone(
                job_id=gone,
                kind="work",
                queue="q",
                tenant=None,
                correlation_id="c",
                deleted_at=at(2),
                sent_at=at(2),
            )
            for gone in (*(uuid4() for _ in range(PAGE)), job_id)
        ]
        assert [(item.type, item.job_id) for item in await read(stream, 1) if isinstance(item, Event)] == [
            (EventType.DELETED, job_id)
        ]


async def test_a_subscriber_that_cannot_join_gets_the_error() -> None:
    fake = Fake()
    fake.away = True
    with pytest.raises(StoreUnavailable):
        async with Watcher(fake, InProcessDelivery()).subscribe(Subscription()):
            pass


async def test_what_happened_before_a_stream_began_is_not_sent() -> None:
    fake, old, new = Fake(), uuid4(), uuid4()
    fake.jobs = {old: view(old, 0)}
    watching = Watcher(fake, InProcessDelivery())
    async with watching.subscribe(Subscription()) as first:
        fake.jobs[new] = view(new, 0.5)
        assert [item.type for item in await read(first, 1)] == ["enqueued"]
        async with watching.subscribe(Subscription()) as second:
            fake.jobs[old] = view(old, 0, ended=1)

            for stream in (first, second):
                assert [item.type for item in await read(stream, 1)] == ["completed"]


async def test_a_watcher_that_cannot_keep_pace_skips_and_says_so() -> None:
    fake = Fake()
    watching = Watcher(fake, InProcessDelivery())
    with patch.object(feeds, "MAX_TRUNCATED", 3):
        async with watching.subscribe(Subscription()) as stream:
            fake.now, fake.cut = 60.0, True

            (item,) = await read(stream, 1)

            assert isinstance(item, Gap) and item.until == at(60)


async def test_a_watched_job_that_vanishes_without_a_tombstone_is_deleted_in_the_end() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    with patch("dutiful.events.feeds.TOMBSTONE_WAIT", 0.05):
        async with Watcher(fake, InProcessDelivery()).subscribe(Subscription(jobs=frozenset({job_id}))) as stream:
            fake.jobs.clear()
            async with asyncio.timeout(5):
                assert [item.type async for item in stream] == ["snapshot", "deleted"], "and so the stream ends"


async def test_closing_ends_every_stream_but_what_is_buffered_can_be_read() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    watching = Watcher(fake, InProcessDelivery())
    async with watching.subscribe(Subscription(jobs=frozenset({job_id}))) as stream:
        await watching.close()
        async with asyncio.timeout(5):
            assert [item.type async for item in stream] == ["snapshot"]


async def test_a_cancelled_read_loses_nothing() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    async with Watcher(fake, InProcessDelivery()).subscribe(Subscription(), since=at(-10)) as stream:
        items: list[Item] = []
        for _ in range(20):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0005):
                    items.append(await anext(stream))
        items += await read(stream, 1 - len(items))
    assert [item.type for item in items] == ["enqueued"]


async def test_no_job_is_read_again_until_it_has_another_mark() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    async with Watcher(fake, InProcessDelivery()).subscribe(Subscription(jobs=frozenset({job_id}))) as stream:
        await read(stream, 1)
        await until(lambda: len(fake.polls) > 1)  # of which the first read what had happened since the snapshot
        fake.polls.clear()
        fake.views_read.clear()
        await until(lambda: len(fake.polls) > 5)
        assert fake.views_read == []
        fake.jobs = {job_id: view(job_id, 0, ended=1)}
        assert [item.type for item in await read(stream, 1)] == ["completed"]
        assert fake.views_read == [1]


async def test_what_happens_while_a_stream_joins_one_that_is_polled_is_sent_to_it() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0)}
    watching, views = Watcher(fake, InProcessDelivery()), fake.views
    wanted = Subscription(jobs=frozenset({job_id}))
    async with watching.subscribe(wanted, snapshot=False) as first:

        async def late(job_ids: Sequence[UUID], *, largest: int | None = None) -> list[JobView]:
            """What the second stream begins with; the first is sent all that happens before that stream is added."""
            found = await views(job_ids)
            fake.views = views  # type: ignore[method-assign]
            fake.jobs = {job_id: view(job_id, 0, ended=1)}
            assert [item.type for item in await read(first, 1)] == ["completed"]
            return found

        await until(lambda: len(fake.polls) > 1)
        fake.views = late  # type: ignore[method-assign]
        async with watching.subscribe(wanted, snapshot=False) as second:
            assert [item.type for item in await read(second, 1)] == ["completed"]


async def test_a_snapshot_whose_result_is_gone_is_replaced_by_a_newer_one() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0, ended=1).without(True, [])}
    async with Watcher(fake, InProcessDelivery()).subscribe(Subscription(jobs=frozenset({job_id}))) as stream:
        fake.jobs = {job_id: view(job_id, 0, progress=1)}
        (item,) = await read(stream, 1)
    assert isinstance(item, Snapshot) and item.job == fake.jobs[job_id].job


async def test_a_stream_that_ends_while_the_store_is_away_says_that_a_result_is_missing() -> None:
    fake, job_id = Fake(), uuid4()
    fake.jobs = {job_id: view(job_id, 0, ended=1).without(True, [])}
    watching = Watcher(fake, InProcessDelivery())
    async with watching.subscribe(Subscription(jobs=frozenset({job_id}))) as stream:
        fake.away = True
        await watching.close()
        with pytest.raises(StreamOverflow, match="look its job up"):
            await read(stream, 1)


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


async def test_a_slow_poll_does_not_delay_all_streams_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, paused, now = Fake(), list[float](), [100.0]
    fake.jobs[JOB] = view(JOB, 0)

    async def slow(job_ids: Sequence[UUID]) -> list[JobChange]:
        now[0] += 2 * watcher.POLL_INTERVAL
        return []

    async def wait(event: asyncio.Event, seconds: float) -> None:
        paused.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(fake, "marks", slow)
    monkeypatch.setattr(watcher, "_wait", wait)
    watching = Watcher(fake, InProcessDelivery())
    async with watching.subscribe(Subscription(jobs=frozenset({JOB}))):
        await until(lambda: len(paused) > 4)
    assert max(paused) <= watcher.POLL_INTERVAL


async def test_a_subscriber_that_joins_while_the_last_poll_is_given_up_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, hanging = Fake(), asyncio.Event()
    fake.jobs[JOB] = view(JOB, 0)
    marks = fake.marks

    async def stuck(job_ids: Sequence[UUID]) -> list[JobChange]:
        hanging.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(watcher, "STOP_TIMEOUT", 0.01)
    watching = Watcher(fake, InProcessDelivery())
    wanted = Subscription(jobs=frozenset({JOB}))
    async with watching.subscribe(wanted, snapshot=False):
        monkeypatch.setattr(fake, "marks", stuck)
        await asyncio.wait_for(hanging.wait(), 5)
        monkeypatch.setattr(fake, "marks", marks)
    async with watching.subscribe(wanted, snapshot=False) as stream:  # its poll is cancelled, and may not have ended
        fake.jobs[JOB] = view(JOB, 0, ended=1)
        (item,) = await read(stream, 1)
    assert item.type == "completed"


def test_many_events_for_many_streams_make_the_next_poll_read_less() -> None:
    page = feeds.AllJobsFeed(Fake())
    page.adjust_page(feeds.FAN_OUT + 1)
    assert page._page == PAGE // 2  # a size, which a fake store would have to be filled for to see
    for _ in range(20):
        page.adjust_page(feeds.FAN_OUT + 1)
    assert page._page == feeds.MIN_PAGE
    for _ in range(20):
        page.adjust_page(0)
    assert page._page == PAGE


def test_frames_are_kept_by_their_size() -> None:
    frames = Encoded(limit=2_000, largest=500)
    small = [event(f"started:{n}", n) for n in range(50)]
    for one in small:
        assert frames.frame(one) == frames.frame(one)
    assert 0 < frames._size <= 2_000  # memory: frames are the same, kept or not
    before = frames._size
    frames.frame(event("x" * 600))
    assert frames._size == before
