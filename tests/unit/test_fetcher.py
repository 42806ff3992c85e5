"""Where a lane claims from, and how many suspects it may have."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from worker_parts import AWAY, WORKER, MovingClock, ScriptedClaims, after, clock, config_of, held, new_claim

from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import Claim
from dutiful.declare.lane import LaneSettings
from dutiful.store.claims import QueueLevel
from dutiful.store.control import Pause, PauseScope
from dutiful.worker.lanes.fetcher import (
    FORGET_AFTER,
    MOST_ASKED,
    MOST_REMEMBERED,
    MOST_SEEN,
    FetchCursors,
    Fetcher,
    Suspects,
)
from dutiful.worker.lanes.inbox import Inbox, InboxSource
from dutiful.worker.leases import Leases

__all__ = ["clock"]
ANY = ("*",)
AFTER = 1e9  # after anything else


@pytest.fixture
def cursors(clock: MovingClock) -> FetchCursors:
    return FetchCursors()


def floors(cursors: FetchCursors, queues: tuple[str, ...] = ANY) -> dict[tuple[str, int], int]:
    return {(level.queue, level.priority): level.seq for level in cursors.levels(queues)}


def order(cursors: FetchCursors, queues: tuple[str, ...] = ANY) -> list[str]:
    return [f"{level.queue}{level.priority}" for level in cursors.levels(queues)]


# --- cursors


def test_queues_of_one_priority_take_turns_to_be_first(cursors: FetchCursors) -> None:
    cursors.add([("b", 1), ("a", 1), ("c", 1)])
    assert [order(cursors) for _ in range(4)] == [
        ["b1", "c1", "a1"],
        ["c1", "a1", "b1"],
        ["a1", "b1", "c1"],
        ["b1", "c1", "a1"],
    ]


def test_a_better_priority_comes_first_whoevers_turn_it_is(cursors: FetchCursors) -> None:
    cursors.add([("a", 2), ("b", 1), ("b", 2), ("a", 0)])
    assert [order(cursors) for _ in range(2)] == [["a0", "b1", "b2", "a2"], ["a0", "b1", "a2", "b2"]]


def test_of_very_many_queues_each_turn_begins_where_the_last_claim_could_not_look(cursors: FetchCursors) -> None:
    names = [f"q{n:05}" for n in range(2 * MOST_ASKED + 1)]
    cursors.add([(name, 1) for name in names])
    turns = [[level.queue for level in cursors.levels(ANY)] for _ in range(3)]
    assert [turn[0] for turn in turns] == [names[MOST_ASKED], names[2 * MOST_ASKED], names[MOST_ASKED - 1]]
    assert all(sorted(turn) == names for turn in turns)


def test_a_level_that_is_forgotten_while_levels_are_asked_for_is_passed_over(
    cursors: FetchCursors, clock: MovingClock
) -> None:
    cursors.add([("a", 1), ("b", 2)])
    asked = cursors.in_order(ANY)
    assert next(asked).queue == "a"
    clock.now += FORGET_AFTER + 1
    cursors.forget_idle()
    assert list(asked) == [] and floors(cursors) == {}


def test_a_lane_sees_its_own_queues_only(cursors: FetchCursors) -> None:
    assert order(cursors) == []
    cursors.add([("a", 1), ("b", 1)])
    assert order(cursors, ("b", "c")) == ["b1"]
    assert order(cursors, ("c",)) == []
    assert sorted(order(cursors, ("c", "*"))) == ["a1", "b1"]


def test_a_floor_is_just_below_the_last_job_claimed(cursors: FetchCursors) -> None:
    cursors.add([("a", 1)])
    assert floors(cursors) == {("a", 1): 0}
    cursors.advance([new_claim(1, queue="a", priority=1, seq=5), new_claim(2, queue="a", priority=1, seq=5_000)], AFTER)
    assert floors(cursors) == {("a", 1): 4_999}
    cursors.advance([new_claim(3, queue="a", priority=1, seq=4_000)], AFTER)
    assert floors(cursors) == {("a", 1): 4_999}, "a late one does not lower it"
    cursors.add([("a", 1)])
    assert floors(cursors) == {("a", 1): 4_999}, "neither does a hint"
    cursors.advance([new_claim(4, queue="b", priority=2, seq=1)], AFTER)
    assert floors(cursors)["b", 2] == 0


def test_a_peek_lowers_a_floor_to_just_below_what_it_found_and_never_raises_it(cursors: FetchCursors) -> None:
    cursors.advance([new_claim(1, queue="a", priority=1, seq=5_000)], AFTER)
    cursors.lower([QueueLevel("a", 1, 900)], 0.0)
    assert floors(cursors) == {("a", 1): 899}
    cursors.lower([QueueLevel("a", 1, 901), QueueLevel("b", 3, 7)], 0.0)
    assert floors(cursors) == {("a", 1): 899, ("b", 3): 6}
    cursors.lower([QueueLevel("b", 3, 7)], 0.0)
    assert floors(cursors)["b", 3] == 6, "the job itself is above the floor"


def test_a_claim_that_began_before_a_peek_lowered_the_floor_does_not_raise_it(
    cursors: FetchCursors, clock: MovingClock
) -> None:
    """It may not have seen the job that the peek has found; with the floor above it, no worker would for a while."""
    cursors.advance([new_claim(1, queue="a", priority=1, seq=5_000)], AFTER)
    asked_at = clock.now
    clock.now += 1
    cursors.lower([QueueLevel("a", 1, 900)], clock.now)
    cursors.advance([new_claim(2, queue="a", priority=1, seq=6_000)], asked_at)
    assert floors(cursors) == {("a", 1): 899}
    cursors.lower([QueueLevel("a", 1, 950)], clock.now)
    cursors.advance([new_claim(3, queue="a", priority=1, seq=6_500)], clock.now + 1)
    assert floors(cursors) == {("a", 1): 6_499}


def test_a_claim_that_began_before_a_peek_does_not_raise_the_floor_beyond_what_the_peek_saw(
    cursors: FetchCursors, clock: MovingClock
) -> None:
    """The job may have been committed after the claim had looked there."""
    cursors.add([("a", 1), ("b", 1)])
    asked_at = clock.now
    for seq in (700, 500, 600):
        clock.now += 1
        cursors.lower([QueueLevel("a", 1, seq), QueueLevel("b", 1, 2_000)], 0.0)
    cursors.advance([new_claim(1, queue="b", priority=1, seq=1_000)], asked_at)
    assert floors(cursors) == {("a", 1): 0, ("b", 1): 999}, "it ended before what was seen"
    cursors.advance([new_claim(2, queue="a", priority=1, seq=1_000)], clock.now - 0.5)
    assert floors(cursors)["a", 1] == 599, "it began after the others"
    cursors.advance([new_claim(3, queue="a", priority=1, seq=1_000)], asked_at)
    assert floors(cursors)["a", 1] == 599
    cursors.advance([new_claim(4, queue="a", priority=1, seq=1_000)], clock.now + 1)
    assert floors(cursors)["a", 1] == 999


def test_of_very_many_peeks_none_is_passed_by_a_claim_that_began_before(
    cursors: FetchCursors, clock: MovingClock
) -> None:
    cursors.add([("a", 1)])
    asked_at = clock.now
    for seq in range(100, 100 + 2 * MOST_SEEN):
        clock.now += 1
        cursors.lower([QueueLevel("a", 1, seq)], 0.0)
    cursors.advance([new_claim(1, queue="a", priority=1, seq=1_000)], clock.now)
    assert floors(cursors)["a", 1] == 98 + 2 * MOST_SEEN
    again = FetchCursors()
    again.add([("a", 1)])
    for seq in range(100, 100 + 2 * MOST_SEEN):
        clock.now += 1
        again.lower([QueueLevel("a", 1, seq)], 0.0)
    again.advance([new_claim(1, queue="a", priority=1, seq=1_000)], asked_at)
    assert floors(again)["a", 1] == 99


def after_of(cursors: FetchCursors) -> UUID | None:
    (level,) = cursors.levels(ANY)
    return level.after


def test_jobs_of_one_moment_are_claimed_from_behind_the_last_one(cursors: FetchCursors, clock: MovingClock) -> None:
    def claimed(number: int, seq: int = 5_000) -> Claim:
        return new_claim(number, queue="a", priority=1, seq=seq)

    cursors.add([("a", 1)])
    assert cursors.levels(ANY) == [QueueLevel("a", 1)]
    cursors.advance([claimed(1), claimed(7)], AFTER)
    assert cursors.levels(ANY) == [QueueLevel("a", 1, 4_999, UUID(int=7))]
    cursors.advance([claimed(6)], AFTER)
    assert after_of(cursors) == UUID(int=7), "another lane's claim was faster"
    cursors.add([("a", 1)])
    cursors.add_hinted([("a", 1)])
    assert after_of(cursors) == UUID(int=7)
    cursors.advance([claimed(2, 5_001)], AFTER)
    assert cursors.levels(ANY) == [QueueLevel("a", 1, 5_000, UUID(int=2))]
    cursors.advance([claimed(9)], AFTER)
    assert cursors.levels(ANY) == [QueueLevel("a", 1, 5_000, UUID(int=2))]


@pytest.mark.parametrize(("seen", "floor"), [(900, 899), (5_000, 4_999)])
def test_a_peek_that_finds_a_job_at_the_floor_or_below_makes_all_of_that_moment_be_searched(
    cursors: FetchCursors, clock: MovingClock, seen: int, floor: int
) -> None:
    """It may have a smaller id than the last one claimed, and have been committed late."""
    cursors.advance([new_claim(7, queue="a", priority=1, seq=5_000)], AFTER)
    asked_at = clock.now
    clock.now += 1
    cursors.lower([QueueLevel("a", 1, seen)], 0.0)
    assert cursors.levels(ANY) == [QueueLevel("a", 1, floor)]
    cursors.advance([new_claim(8, queue="a", priority=1, seq=5_000)], asked_at)
    assert cursors.levels(ANY) == [QueueLevel("a", 1, floor)], "it may not have seen the job"
    cursors.advance([new_claim(9, queue="a", priority=1, seq=5_000)], clock.now + 1)
    assert cursors.levels(ANY) == [QueueLevel("a", 1, 4_999, UUID(int=9))]


def test_a_peek_that_finds_a_job_above_the_floor_changes_nothing(cursors: FetchCursors) -> None:
    cursors.advance([new_claim(7, queue="a", priority=1, seq=5_000)], AFTER)
    cursors.lower([QueueLevel("a", 1, 5_001)], 0.0)
    assert cursors.levels(ANY) == [QueueLevel("a", 1, 4_999, UUID(int=7))]


def test_a_level_that_was_forgotten_is_searched_as_a_whole(cursors: FetchCursors, clock: MovingClock) -> None:
    cursors.advance([new_claim(7, queue="a", priority=1, seq=5_000)], AFTER)
    clock.now += FORGET_AFTER + 1
    cursors.forget_idle()
    cursors.add([("a", 1)])
    assert cursors.levels(ANY) == [QueueLevel("a", 1)]


def test_a_suspect_moves_no_floor(cursors: FetchCursors) -> None:
    """It is found wherever it is, and goes to the end of its queue when it is lost: all others would be passed over."""
    cursors.advance([new_claim(1, queue="a", priority=1, seq=5)], AFTER)
    cursors.advance([new_claim(2, queue="a", priority=1, seq=9_000, crashes=1)], AFTER)
    assert floors(cursors) == {("a", 1): 4}
    cursors.advance([new_claim(3, queue="b", priority=1, seq=9_000, crashes=1)], AFTER)
    assert floors(cursors)["b", 1] == 0


def test_only_an_idle_level_is_forgotten(cursors: FetchCursors, clock: MovingClock) -> None:
    uses: dict[str, Callable[[], None]] = {
        "added": lambda: cursors.add([("added", 1)]),
        "peeked": lambda: cursors.lower([QueueLevel("peeked", 1, 1)], 0.0),
        "claimed": lambda: cursors.advance([new_claim(1, queue="claimed", priority=1)], AFTER),
    }
    for use in uses.values():
        use()
    cursors.add([("peeked", 1), ("claimed", 1), ("idle", 1)])
    clock.now += 60.0
    cursors.forget_idle()
    assert len(floors(cursors)) == 4
    for use in uses.values():
        use()
    clock.now += 0.001
    cursors.forget_idle()
    assert set(floors(cursors)) == {("added", 1), ("peeked", 1), ("claimed", 1)}


def test_a_forgotten_queue_has_no_turn(cursors: FetchCursors, clock: MovingClock) -> None:
    cursors.add([("a", 1), ("b", 1), ("c", 1)])
    order(cursors)
    clock.now += FORGET_AFTER + 1
    cursors.add([("a", 1), ("c", 1)])
    cursors.forget_idle()
    assert [order(cursors)[0] for _ in range(4)] == ["a1", "c1", "a1", "c1"]


def test_new_jobs_are_looked_for_a_little_below_the_floors(cursors: FetchCursors) -> None:
    cursors.advance([new_claim(1, queue="a", priority=1, seq=9_000_001)], AFTER)
    cursors.advance([new_claim(2, queue="b", priority=2, seq=3)], AFTER)
    cursors.add_hinted([("c", 3)])
    assert cursors.near() == [QueueLevel("a", 1, 4_000_000), QueueLevel("b", 2), QueueLevel("c", 3)]


def test_new_jobs_are_looked_for_in_levels_that_were_used_last_although_they_are_idle(
    cursors: FetchCursors, clock: MovingClock
) -> None:
    cursors.advance([new_claim(1, queue="a", priority=1, seq=9_000_001)], AFTER)
    cursors.add_hinted([("invented", 1)])
    clock.now += 60.001
    cursors.forget_idle()
    assert floors(cursors) == {}
    assert cursors.near() == [QueueLevel("a", 1, 4_000_000)], "a hint alone is not worth to be remembered"

    cursors.advance([new_claim(1, queue="a", priority=1, seq=20_000_001)], AFTER)
    assert cursors.near() == [QueueLevel("a", 1, 15_000_000)]
    cursors.add(named("q", MOST_REMEMBERED))
    clock.now += 60.001
    cursors.add([("a", 1)])
    cursors.forget_idle()
    clock.now += 60.001
    cursors.forget_idle()
    assert [level.queue for level in cursors.near()] == [*(f"q{n}" for n in range(1, MOST_REMEMBERED)), "a"]


def named(prefix: str, count: int) -> list[tuple[str, int]]:
    return [(f"{prefix}{number}", 1) for number in range(count)]


def test_a_level_that_a_hint_names_is_claimed_from_its_beginning_and_a_known_one_where_it_was(
    cursors: FetchCursors,
) -> None:
    cursors.advance([new_claim(1, queue="a", priority=1, seq=5_000)], AFTER)
    assert cursors.add_hinted([("a", 1), ("b", 2)]) is True
    assert floors(cursors) == {("a", 1): 4_999, ("b", 2): 0}


def test_fifty_levels_are_believed_on_hints_alone(cursors: FetchCursors) -> None:
    cursors.add([("known", 1)])
    assert cursors.add_hinted(named("q", 50)) is True
    assert cursors.add_hinted([("known", 1), ("q0", 1)]) is True, "they are known"
    assert cursors.add_hinted([("another", 1)]) is False
    assert ("another", 1) not in floors(cursors) and len(floors(cursors)) == 51


def test_a_level_that_only_a_hint_named_is_dropped_by_a_peek_that_finds_no_job_there(
    cursors: FetchCursors, clock: MovingClock
) -> None:
    cursors.add([("added", 1)])
    cursors.add_hinted([("empty", 1), ("found", 1)])
    asked_at = clock.now = clock.now + 1
    cursors.add_hinted([("later", 1)])
    cursors.lower([QueueLevel("found", 1, 7)], asked_at)
    assert set(floors(cursors)) == {("added", 1), ("found", 1), ("later", 1)}, "the peek may have missed the later one"
    cursors.lower([], asked_at + 1)
    assert set(floors(cursors)) == {("added", 1), ("found", 1)}, "a job was seen in the other one"


def test_a_level_that_was_claimed_from_is_not_dropped_by_a_peek(cursors: FetchCursors, clock: MovingClock) -> None:
    cursors.add_hinted([("a", 1)])
    cursors.advance([new_claim(1, queue="a", priority=1, seq=7)], AFTER)
    cursors.lower([], clock.now + 1)
    assert set(floors(cursors)) == {("a", 1)}


def test_forgotten_levels_leave_room_for_other_hints(cursors: FetchCursors, clock: MovingClock) -> None:
    cursors.add_hinted(named("q", 50))
    clock.now += FORGET_AFTER + 0.001
    cursors.forget_idle()
    assert floors(cursors) == {}
    assert cursors.add_hinted(named("r", 50)) is True


def test_a_hint_keeps_a_known_level(cursors: FetchCursors, clock: MovingClock) -> None:
    cursors.add([("a", 1)])
    clock.now += FORGET_AFTER
    cursors.add_hinted([("a", 1)])
    clock.now += 0.001
    cursors.forget_idle()
    assert set(floors(cursors)) == {("a", 1)}


def test_the_time_is_the_one_that_is_documented() -> None:
    assert FORGET_AFTER == 60.0


# --- suspects


def test_one_suspect_is_admitted_and_who_was_denied_is_called_once_it_is_over() -> None:
    suspects, woken = Suspects(), list[str]()
    assert suspects.reserve(lambda: woken.append("first"))
    assert not suspects.reserve(lambda: woken.append("second"))
    suspects.assign([new_claim(1), new_claim(2, crashes=1)])
    suspects.release(new_claim(1))
    assert not suspects.reserve(lambda: woken.append("third")) and woken == []
    suspects.release(new_claim(2, crashes=1))
    assert sorted(woken) == ["second", "third"]
    assert suspects.reserve(lambda: None)
    suspects.assign([])
    assert sorted(woken) == ["second", "third"], "each is called once"


def test_a_reservation_for_which_no_suspect_was_found_ends_at_once() -> None:
    suspects, woken = Suspects(), list[str]()
    suspects.reserve(lambda: None)
    suspects.reserve(lambda: woken.append("denied"))
    suspects.assign([new_claim(1)])
    assert woken == ["denied"] and suspects.reserve(lambda: None)


# --- fetching


class Fetching:
    def __init__(self, lane: LaneSettings | None = None, **settings: Any) -> None:
        self.claims = ScriptedClaims()
        self.cursors = FetchCursors()
        self.leases = Leases()
        self.suspects = Suspects()
        self.woken = 0
        lane = lane or LaneSettings("general", 5)
        config = config_of(self.claims, **settings)
        self.fetcher = Fetcher(config, lane, self.cursors, self.leases, self.suspects, self._wake)
        self.cursors.add([("default", 100)])

    def _wake(self) -> None:
        self.woken += 1

    @property
    def suspects_asked(self) -> list[int]:
        return [request.suspects for request in self.claims.asked("claim")]


async def test_a_claim_asks_for_what_the_lane_wants_and_its_leases_are_kept() -> None:
    fetching = Fetching(lease=timedelta(seconds=9), claim_tenants=("acme",))
    claims = [new_claim(1, seq=3_000), new_claim(2, seq=3_001)]
    fetching.claims.script("claim", claims)

    assert await fetching.fetcher.fetch(7, suspect=True) == claims

    (request,) = fetching.claims.asked("claim")
    assert (request.worker_id, request.lane, request.limit, request.suspects) == (WORKER, "general", 7, 1)
    assert (request.lease, request.tenants, request.kinds) == (timedelta(seconds=9), ("acme",), ["greet"])
    assert request.levels == [QueueLevel("default", 100, 0)]
    assert fetching.leases.claim(2) == claims[1]
    assert floors(fetching.cursors) == {("default", 100): 3_000}


async def test_very_many_queues_are_asked_for_in_parts_until_one_has_jobs(clock: MovingClock) -> None:
    fetching = Fetching()
    fetching.cursors.add([(f"invented-{n}", 100) for n in range(3 * MOST_ASKED)])
    fetching.claims.script("claim", [], [new_claim(1, queue="default", seq=7)])

    assert [claim.claim_id for claim in await fetching.fetcher.fetch(7, suspect=False)] == [1]
    assert [len(request.levels) for request in fetching.claims.asked("claim")] == [MOST_ASKED] * 2
    assert await fetching.fetcher.fetch(7, suspect=False) == []
    asked = [level.queue for request in fetching.claims.asked("claim")[2:] for level in request.levels]
    assert len(asked) == len({*asked}) == 3 * MOST_ASKED + 1, "nowhere else could there be one"


async def test_of_very_many_queues_those_without_a_job_are_forgotten_unless_one_was_named_meanwhile(
    clock: MovingClock,
) -> None:
    fetching = Fetching()
    names = [f"invented-{n:04}" for n in range(2 * MOST_ASKED)]
    fetching.cursors.add([(name, 100) for name in names])
    clock.now += 1

    async def hint(given: Any) -> list[Any]:
        clock.now += 1
        fetching.cursors.add_hinted([(given.levels[0].queue, 100)])
        clock.now += 1
        return []

    fetching.claims.script("claim", hint)
    assert await fetching.fetcher.fetch(7, suspect=False) == []

    named = fetching.claims.asked("claim")[0].levels[0].queue
    last = [level.queue for level in fetching.claims.asked("claim")[-1].levels]
    assert {queue for queue, _ in floors(fetching.cursors)} == {named, *last} and len(last) == 1


async def test_without_a_level_nothing_is_asked() -> None:
    fetching = Fetching(LaneSettings("fast", 1, ("fast",)))
    assert await fetching.fetcher.fetch(7, suspect=True) == []
    assert fetching.claims.calls == []
    assert fetching.suspects.reserve(lambda: None), "and nothing is reserved"


async def test_a_suspect_is_wanted_only_with_a_free_slot() -> None:
    fetching = Fetching()
    await fetching.fetcher.fetch(7, suspect=False)
    await fetching.fetcher.fetch(7, suspect=True)
    assert fetching.suspects_asked == [0, 1]


async def test_while_a_suspect_is_here_no_other_is_asked_for() -> None:
    fetching = Fetching()
    suspect = new_claim(1, crashes=1)
    fetching.claims.script("claim", [suspect])
    await fetching.fetcher.fetch(7, suspect=True)
    await fetching.fetcher.fetch(7, suspect=True)
    await fetching.fetcher.fetch(7, suspect=False)
    assert fetching.suspects_asked == [1, 0, 0] and fetching.woken == 0
    fetching.suspects.release(suspect)
    assert fetching.woken == 1
    await fetching.fetcher.fetch(7, suspect=True)
    assert fetching.suspects_asked[3:] == [1]


async def test_a_claim_that_fails_gives_its_reservation_of_a_suspect_back() -> None:
    fetching = Fetching()
    fetching.claims.script("claim", AWAY)
    with pytest.raises(StoreUnavailable):
        await fetching.fetcher.fetch(7, suspect=True)
    await fetching.fetcher.fetch(7, suspect=True)
    assert fetching.suspects_asked == [1, 1], "otherwise no suspect would ever run here again"


async def test_a_claim_that_is_cancelled_gives_its_reservation_of_a_suspect_back() -> None:
    fetching, gate = Fetching(), asyncio.Event()
    fetching.claims.script("claim", after(gate, []))
    fetch = asyncio.create_task(fetching.fetcher.fetch(7, suspect=True))
    await asyncio.sleep(0)
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    assert fetching.suspects.reserve(lambda: None)


async def test_a_claim_without_a_reservation_does_not_end_that_of_another_lane() -> None:
    fetching = Fetching()
    fetching.suspects.reserve(lambda: None)  # of another lane, whose claim is under way
    await fetching.fetcher.fetch(7, suspect=True)
    assert fetching.suspects_asked == [0]
    assert not fetching.suspects.reserve(lambda: None)


async def test_claims_whose_answer_was_lost_are_found_and_those_under_way_are_not_among_them() -> None:
    fetching, gate = Fetching(), asyncio.Event()
    known, coming, lost = (new_claim(number) for number in (1, 2, 3))
    fetching.leases.add([known])
    fetching.claims.script("claim", after(gate, [coming]))
    fetching.claims.script("held_by", [held(known), held(coming), held(lost)])
    fetch = asyncio.create_task(fetching.fetcher.fetch(7, suspect=True))
    await asyncio.sleep(0)
    unknown = asyncio.create_task(fetching.fetcher.unknown_claims())
    await asyncio.sleep(0)
    gate.set()
    assert [one.claim_id for one in await unknown] == [3]
    assert await fetch == [coming] and fetching.claims.asked("held_by") == [WORKER]


async def test_more_jobs_for_a_batch_follow_its_first_one_and_their_leases_are_kept() -> None:
    fetching = Fetching(lease=timedelta(seconds=9), claim_tenants=("acme",))
    more = [new_claim(2), new_claim(3)]
    fetching.claims.script("claim", more)

    assert await fetching.fetcher.fetch_for(new_claim(1, seq=7), 5, across_tenants=True) == more

    (request,) = fetching.claims.asked("claim")
    assert (request.worker_id, request.lane, request.limit, request.kinds) == (WORKER, "general", 5, ["greet"])
    assert (request.lease, request.tenants) == (timedelta(seconds=9), ("acme",))
    assert request.levels == [QueueLevel("default", 100, 6, UUID(int=1))]
    assert fetching.leases.claim(3) == more[1]


def test_a_lane_knows_of_more_jobs_if_its_source_does() -> None:
    fetching = Fetching()
    assert fetching.fetcher.more is False
    fetching.fetcher._source = SimpleNamespace(more=True)
    assert fetching.fetcher.more is True


def test_with_a_broker_jobs_come_from_its_inbox_which_wakes_the_lane() -> None:
    inbox = Inbox()
    config = config_of(ScriptedClaims())
    config.inbox = inbox
    wake = lambda: None  # noqa: E731
    fetcher = Fetcher(config, LaneSettings("general", 5), FetchCursors(), Leases(), Suspects(), wake)
    assert isinstance(fetcher._source, InboxSource) and inbox.on_arrival == [wake]


# --- pauses


def pauses(*names: str) -> Sequence[Pause]:
    return [Pause(PauseScope.KIND, name, datetime(2026, 1, 1, tzinfo=UTC)) for name in names]


async def fetch_any(fetching: Fetching) -> list[Claim]:
    return await fetching.fetcher.fetch(1, suspect=False)


async def fetch_for_a_batch(fetching: Fetching) -> list[Claim]:
    return await fetching.fetcher.fetch_for(new_claim(1), 1, across_tenants=True)


@pytest.fixture(params=[fetch_any, fetch_for_a_batch])
async def under_way(request: Any) -> AsyncIterator[tuple[Fetching, asyncio.Event, "asyncio.Task[Any]"]]:
    """A fetch that has begun, and ends when the event is set."""
    fetching, gate = Fetching(), asyncio.Event()
    fetching.claims.script("claim", after(gate, []), after(gate, []))
    fetch = asyncio.create_task(request.param(fetching))
    await asyncio.sleep(0)
    yield fetching, gate, fetch
    gate.set()
    await fetch


async def test_a_pause_is_confirmed_at_once_if_no_fetch_is_under_way() -> None:
    fetching, (pause,) = Fetching(), pauses("email")
    assert fetching.fetcher.pauses_seen([pause]) == (pause.mark,)
    assert fetching.fetcher.pauses_seen([]) == ()


async def test_a_pause_is_not_confirmed_while_a_fetch_that_may_have_missed_it_is_under_way(under_way: Any) -> None:
    fetching, gate, fetch = under_way
    (pause,) = pauses("email")
    assert fetching.fetcher.pauses_seen([pause]) == ()
    assert fetching.fetcher.pauses_seen([pause]) == (), "looking again does not help"
    gate.set()
    await fetch
    assert fetching.fetcher.pauses_seen([pause]) == (pause.mark,)


async def test_a_later_fetch_knows_the_pause_that_an_earlier_one_may_have_missed(under_way: Any) -> None:
    fetching, gate, fetch = under_way
    old, new = pauses("email", "import")
    assert fetching.fetcher.pauses_seen([old]) == ()
    gate.set()
    await fetch
    gate.clear()
    for fetch_again in (fetch_any, fetch_for_a_batch):
        gate.clear()
        fetching.claims.script("claim", after(gate, []))
        later = asyncio.create_task(fetch_again(fetching))
        await asyncio.sleep(0)
        assert fetching.fetcher.pauses_seen([old]) == (old.mark,)
        if fetch_again is fetch_for_a_batch:
            assert fetching.fetcher.pauses_seen([old, new]) == (old.mark,)
        gate.set()
        await later
    assert fetching.fetcher.pauses_seen([old, new]) == (old.mark, new.mark)


async def test_a_fetch_that_failed_is_not_under_way() -> None:
    fetching, (pause,) = Fetching(), pauses("email")
    fetching.claims.script("claim", AWAY)
    with pytest.raises(StoreUnavailable):
        await fetching.fetcher.fetch(1, suspect=False)
    assert fetching.fetcher.pauses_seen([pause]) == (pause.mark,)


def test_a_suspect_is_known_by_its_job_because_its_claim_may_be_another() -> None:
    suspects = Suspects()
    suspects.reserve(lambda: None)
    suspects.assign([new_claim(1, job_id=UUID(int=7), crashes=2)])
    suspects.release(new_claim(2, job_id=UUID(int=8), crashes=1))
    assert not suspects.reserve(lambda: None)
    suspects.release(new_claim(2, job_id=UUID(int=7), crashes=2))
    assert suspects.reserve(lambda: None)
