"""Counts of workers: added in turns, counted once, and rolled up without changing any sum."""

import asyncio
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.metrics.last import last_attempts
from dutiful.core.outcome import Failed, Outcome, Snoozed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.control import PauseScope
from dutiful.store.metrics import AttemptStats, Depth
from suite.builders import (
    ADA,
    BOB,
    KIND,
    OOPS,
    T0,
    at,
    claim_one,
    counted_ever,
    enqueue_one,
    new_job,
    pause,
    settle,
    start_one,
    warm,
)

DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def stats(count: int = 1, kind: str = KIND, outcome: str = "completed", **fields: Any) -> AttemptStats:
    return AttemptStats(kind=kind, outcome=outcome, count=count, **fields)


async def roll_up(store: Store, keep: timedelta = DAY, **fields: Any) -> None:
    while await store.metrics.roll_up(keep, **fields):
        pass


@pytest.mark.req("L39", "L76", "L77", "L78")
class MetricSuite:
    @pytest.mark.req("L82")
    async def test_the_last_attempts_of_a_kind_are_kept_however_long_ago(self, store: Store) -> None:
        year = T0 + 365 * DAY

        async def last(now: datetime) -> list[tuple[timedelta, int, int]]:
            unrolled = (await store.metrics.last(now=now))[KIND]
            await roll_up(store, now=now)
            rolled_up = (await store.metrics.last(now=now))[KIND]
            assert last_attempts(rolled_up, now) == last_attempts(unrolled, now)
            return [(one.minute - T0, one.ended, one.failed) for one in rolled_up]

        ends = [stats(outcome="failed"), stats(2, outcome="retried"), stats(3), stats(1, outcome="cancelled")]
        given_back = [stats(outcome=outcome) for outcome in ("snoozed", "released", "lost")]
        await store.metrics.add(ADA, 1, [*ends, *given_back, stats(4, kind="other")], now=T0 + 61 * SECOND)
        await store.metrics.add(BOB, 1, [stats(2, outcome="failed")], now=T0 + 80 * SECOND)
        assert await last(T0 + 2 * MINUTE) == [(MINUTE, 9, 5)]
        await store.metrics.add(ADA, 2, [stats(1)], now=T0 + 3 * MINUTE)
        assert await last(T0 + 3 * MINUTE) == [(3 * MINUTE, 1, 0), (MINUTE, 9, 5)]
        await store.metrics.add(ADA, 3, [stats(9)], now=year)
        assert await last(year) == [(365 * DAY, 9, 0), (3 * MINUTE, 1, 0)]
        await store.metrics.add(ADA, 4, [stats(20, outcome="failed")], now=year + MINUTE)
        # Those of the last five minutes stay, too.
        assert await last(year + MINUTE) == [(365 * DAY + MINUTE, 20, 20), (365 * DAY, 9, 0)]
        assert [one.ended for one in (await store.metrics.last(now=year))["other"]] == [4]

    async def test_counts_of_workers_are_summed_by_kind_and_outcome(self, store: Store) -> None:
        first = stats(
            3,
            run={7: 1, 9: 2},
            wait={0: 3},
            run_microseconds=1_500_000,
            wait_microseconds=250_000,
            payload_bytes=300,
            payload_most=120,
        )
        await store.metrics.add(ADA, 1, [first, stats(2, outcome="retried")], now=T0)
        await store.metrics.add(
            BOB, 1, [stats(1, run={9: 1}, run_microseconds=500_000, payload_bytes=10, payload_most=10)], now=T0
        )

        expected = [
            stats(4, run={7: 1, 9: 3}, wait={0: 3}, run_microseconds=2_000_000, wait_microseconds=250_000,
                  payload_bytes=310, payload_most=120),
            stats(2, outcome="retried"),
        ]  # fmt: skip
        assert await store.metrics.recent(5 * MINUTE, now=T0) == expected
        assert await counted_ever(store) == expected
        await roll_up(store, now=T0)
        assert await store.metrics.recent(5 * MINUTE, now=T0) == expected
        assert await counted_ever(store) == expected

    async def test_a_new_store_has_no_counts(self, store: Store) -> None:
        await store.metrics.add(ADA, 1, [], now=T0)

        assert await store.metrics.roll_up(DAY, now=T0) is False
        assert await store.metrics.recent(HOUR, now=T0) == await counted_ever(store) == []

    @pytest.mark.parametrize("rolled_up", [False, True])
    async def test_a_repeated_turn_changes_nothing(self, store: Store, rolled_up: bool) -> None:
        for turn in (1, 2):
            await store.metrics.add(ADA, turn, [stats(10)], now=T0)
        if rolled_up:
            await roll_up(store, now=T0)

        for turn in (2, 1):
            await store.metrics.add(ADA, turn, [stats(10), stats(5, kind="other")], now=at(1))

        assert await counted_ever(store) == [stats(20)]
        await store.metrics.add(ADA, 3, [stats(1)], now=at(2))
        assert await counted_ever(store) == [stats(21)]

    async def test_two_counts_of_one_kind_in_a_turn_are_added(self, store: Store) -> None:
        await store.metrics.add(ADA, 1, [stats(1), stats(2)], now=T0)

        assert await counted_ever(store) == [stats(3)]

    async def test_recent_counts_are_those_of_the_last_minutes(self, store: Store) -> None:
        await store.metrics.add(ADA, 1, [stats(1)], now=T0)
        await store.metrics.add(ADA, 2, [stats(10)], now=at(3 * 60))
        await roll_up(store, now=at(3 * 60))
        await store.metrics.add(ADA, 3, [stats(100)], now=at(3 * 60 + 1))
        await store.metrics.add(BOB, 1, [stats(1000)], now=at(1))

        async def counted(since: timedelta) -> int:
            return sum(one.count for one in await store.metrics.recent(since, now=at(3 * 60 + 30)))

        assert await counted(2 * MINUTE) == 110
        assert await counted(3 * MINUTE) == 1111  # also of the minute that it began in, all
        assert await counted(timedelta(0)) == 110

    async def test_old_counts_are_deleted_but_totals_only_grow(self, store: Store) -> None:
        await store.metrics.add(ADA, 1, [stats(1)], now=T0)
        await store.metrics.add(ADA, 2, [stats(10)], now=at(2 * 3600))

        await roll_up(store, HOUR, now=at(2 * 3600 + 120))

        for since in (2 * HOUR, DAY):
            assert await store.metrics.recent(since, now=at(2 * 3600 + 120)) == [stats(10)]
        await roll_up(store, HOUR, now=at(10 * 3600))
        assert await store.metrics.recent(DAY, now=at(10 * 3600)) == []
        assert await counted_ever(store) == [stats(11)]

    async def test_a_long_time_is_summed_by_the_hour(self, store: Store) -> None:
        noon = T0.replace(hour=12, minute=0, second=0, microsecond=0)
        for turn, minute in enumerate((-301, -300, -181, -1, 30)):
            await store.metrics.add(ADA, turn + 1, [stats(10**turn, run={turn: 1})], now=noon + minute * MINUTE)

        async def counted(since: timedelta) -> int:
            return sum(one.count for one in await store.metrics.recent(since, now=noon + 30 * MINUTE))

        for _ in range(2):  # the second time, minutes that are no longer needed are gone
            await roll_up(store, 10 * DAY, now=noon + 30 * MINUTE)
            assert await counted(HOUR) == 11000
            assert await counted(3 * HOUR) == 11000
            assert await counted(4 * HOUR) == 11100
            assert await counted(5 * HOUR) == await counted(5 * HOUR + 30 * MINUTE) == 11110
            assert await counted(10 * DAY) == 11111

    async def test_counts_from_a_clock_that_is_ahead_are_of_now(self, store: Store) -> None:
        await store.metrics.add(ADA, 1, [stats(20)], now=at(6 * 3600))

        assert await store.metrics.recent(5 * MINUTE, now=T0) == [stats(20)]
        await roll_up(store, now=T0)
        assert await store.metrics.recent(5 * MINUTE, now=T0) == [stats(20)]
        for later in (10 * 60, 5 * 3600, 6 * 3600 + 1):
            assert await store.metrics.recent(5 * MINUTE, now=at(later)) == []

    async def test_counts_folded_by_a_clock_that_is_ahead_are_not_recent(self, store: Store) -> None:
        await store.metrics.add(ADA, 1, [stats(20)], now=at(6 * 3600))
        await roll_up(store, now=at(6 * 3600))
        await store.metrics.add(ADA, 2, [stats(3)], now=T0)

        for since in (5 * MINUTE, 5 * HOUR):
            assert await store.metrics.recent(since, now=T0) == [stats(3)]

    async def test_recent_counts_and_totals_are_read_at_one_moment(self, store: Store) -> None:
        await store.metrics.add(ADA, 1, [stats(1, run={3: 1})], now=T0)
        await roll_up(store, now=T0)
        await store.metrics.add(ADA, 2, [stats(10, run={3: 10})], now=at(3600))
        await store.metrics.add(BOB, 1, [stats(100, outcome="failed")], now=T0)

        lately, ever = await store.metrics.counted(5 * MINUTE, now=at(3600))
        assert lately == await store.metrics.recent(5 * MINUTE, now=at(3600)) == [stats(10, run={3: 10})]
        assert ever == await counted_ever(store) == [stats(11, run={3: 11}), stats(100, outcome="failed")]

    async def test_folding_changes_no_sum_by_as_much_as_a_microsecond(self, store: Store) -> None:
        chance = Random(4)
        for turn in range(1, 31):
            for worker in (ADA, BOB):
                run, wait = chance.randrange(10**13), chance.randrange(10**9)
                one = stats(chance.randrange(1, 99), run_microseconds=run, wait_microseconds=wait)
                await store.metrics.add(worker, turn, [one], now=at(turn * 20))
            before = await store.metrics.counted(HOUR, now=at(600))
            if turn % 3 == 0:
                await roll_up(store, now=at(600))
            assert await store.metrics.counted(HOUR, now=at(600)) == before

    async def test_folding_goes_in_steps(self, store: Store) -> None:
        many = [stats(1, kind=f"kind_{number:04}") for number in range(2_200)]
        await store.metrics.add(ADA, 1, many, now=T0)

        assert await store.metrics.roll_up(DAY, now=T0) is True
        assert await counted_ever(store) == many  # between two steps, too
        await roll_up(store, now=T0)
        assert await counted_ever(store) == many

    async def test_concurrent_folds_count_everything_once(self, store: Store) -> None:
        await warm(store)
        workers = [UUID(int=number) for number in range(1, 41)]
        kinds = [f"kind_{number:02}" for number in range(20)]

        async def work(worker: UUID) -> None:
            for turn in range(1, 4):
                await store.metrics.add(
                    worker, turn, [stats(1, kind=kind, run={5: 1}) for kind in kinds], now=at(turn * 20)
                )

        await asyncio.gather(*(work(worker) for worker in workers), *(roll_up(store, now=T0) for _ in range(8)))
        await asyncio.gather(*(roll_up(store, now=T0) for _ in range(8)))

        expected = [stats(120, kind=kind, run={5: 120}) for kind in kinds]
        assert await counted_ever(store) == expected
        assert await store.metrics.recent(HOUR, now=at(60)) == expected

    async def test_jobs_are_counted_by_queue_and_kind_and_place(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, "stopped")
        await store.jobs.insert(
            [new_job(), new_job(priority=1), new_job(queue="mail", kind="mail", tenant="acme")], now=T0
        )
        await enqueue_one(store, run_at=at(60), tenant="acme")
        await enqueue_one(store, kind="stopped", tenant="acme")
        await start_one(store, queue="slow", kind="report", tenant="acme")
        await start_one(store, queue="slow", kind="report")

        acme = [
            ("default", KIND, State.SCHEDULED, 1),
            ("default", "stopped", State.BLOCKED, 1),
            ("mail", "mail", State.READY, 1),
            ("slow", "report", State.RUNNING, 1),
        ]
        assert _plain(await store.metrics.depths(tenant="acme")) == sorted(acme)
        everyone = [*acme[:3], ("default", KIND, State.READY, 2), ("slow", "report", State.RUNNING, 2)]
        assert _plain(await store.metrics.depths()) == sorted(everyone)
        assert await store.metrics.depths(tenant="unknown") == []

    async def test_the_oldest_job_of_a_queue_is_found_across_priorities(self, store: Store) -> None:
        await enqueue_one(store, priority=200, now=T0)
        await enqueue_one(store, priority=1, now=at(60))
        await enqueue_one(store, priority=1, tenant="acme", now=at(120))

        assert [queue.oldest_ready_at for queue in await store.queries.queues()] == [T0]
        assert [queue.oldest_ready_at for queue in await store.queries.queues(tenant="acme")] == [at(120)]
        assert (await store.queries.stats(HOUR, tenant="acme", now=at(180))).oldest_ready_at == at(120)

    @pytest.mark.parametrize("outcome", [Failed(OOPS, retry_after=2 * HOUR), Snoozed(2 * HOUR)])
    async def test_a_job_that_is_tried_again_waits_since_it_was_due_again(self, store: Store, outcome: Outcome) -> None:
        assert await settle(store, await start_one(store), outcome, now=at(3600)) == []
        assert (await store.promotion.promote(10, now=at(3 * 3600 + 100))).moved == 1

        assert (await store.queries.stats(HOUR, now=at(3 * 3600 + 100))).oldest_ready_at == at(3 * 3600)

    async def test_the_last_attempt_decides_when_its_job_is_due_again(self, store: Store) -> None:
        first = await start_one(store)
        assert await settle(store, first, Failed(OOPS, retry_after=2 * HOUR)) == []
        await store.control.run_now(first.job_id, now=at(10))
        assert await settle(store, await claim_one(store, now=at(20)), Snoozed(10 * SECOND), now=at(30)) == []
        await store.promotion.promote(10, now=at(50))

        assert (await store.queries.stats(HOUR, now=at(60))).oldest_ready_at == at(40)

    async def test_a_claim_has_the_time_that_its_job_had_been_due(self, store: Store) -> None:
        await enqueue_one(store, now=T0)
        await enqueue_one(store, queue="later", run_at=at(60), now=T0)
        await store.promotion.promote(10, now=at(60))

        assert (await claim_one(store, now=at(90))).waited == 90.0
        assert (await claim_one(store, levels=[QueueLevel("later", 100)], now=at(90))).waited == 30.0
        assert (await start_one(store, now=at(100))).waited == 0.0


def _plain(depths: list[Depth]) -> list[tuple[str, str, State, int]]:
    assert not any(depth.estimated for depth in depths)
    return sorted((depth.queue, depth.kind, depth.state, depth.count) for depth in depths)
