"""Which jobs a claim takes, and in what order."""

import pytest

from dutiful.core.outcome import Failed, Released
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import NEAR_JOBS, QueueLevel
from dutiful.store.control import EVERY_LANE, PauseScope
from suite.builders import (
    BOB,
    DEFAULT,
    KIND,
    LEASE,
    OOPS,
    T0,
    at,
    change,
    claim,
    claim_one,
    crash,
    enqueue,
    enqueue_one,
    new_job,
    pause,
    same_json,
    settle,
    start_one,
    state,
    token,
)


@pytest.mark.req("W20", "W21")
class ClaimSuite:
    async def test_a_claim_has_all_that_the_worker_needs(self, store: Store) -> None:
        parent = await enqueue_one(store, queue="elsewhere")
        job = new_job(
            payload='{"n": [1, 2]}', tenant="acme", correlation_id="order-17", parent_id=parent, subject='{"build": 5}',
            options='{"timeout": 60}', max_attempts=9, run_at=at(-5),
        )  # fmt: skip
        await enqueue(store, job)

        claimed = await claim_one(store, now=at(1))

        assert (claimed.job_id, claimed.attempt, claimed.crashes) == (job.id, 1, 0)
        assert (claimed.kind, claimed.queue, claimed.priority, claimed.max_attempts) == (KIND, "default", 100, 9)
        assert (claimed.tenant, claimed.correlation_id, claimed.parent_id) == ("acme", "order-17", parent)
        assert same_json(claimed.payload, job.payload)
        assert same_json(claimed.subject, job.subject)
        assert same_json(claimed.options, job.options)

    async def test_a_claimed_job_is_running_until_its_lease_ends(self, store: Store) -> None:
        claimed = await start_one(store, now=at(1))

        record = await store.queries.job(claimed.job_id)

        assert record is not None
        assert (record.state, record.attempt) == (State.RUNNING, 1)
        assert (record.started_at, record.expires_at) == (at(1), at(1) + LEASE)
        assert await store.queries.check_places() == []

    async def test_a_job_is_held_by_the_worker_that_claimed_it(self, store: Store) -> None:
        await enqueue_one(store)

        claimed = await claim_one(store, worker_id=BOB)

        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert record.worker_id == BOB

    async def test_a_job_is_claimed_once(self, store: Store) -> None:
        await start_one(store)

        assert await claim(store) == []

    async def test_jobs_of_a_queue_level_start_in_order_of_becoming_ready(self, store: Store) -> None:
        later = await enqueue_one(store, run_at=at(10))
        first = await enqueue_one(store)
        await store.promotion.promote(10, now=at(10))
        last = await enqueue_one(store, now=at(11))

        assert [c.job_id for c in await claim(store, now=at(11))] == [first, later, last]

    async def test_queue_levels_are_served_in_the_order_of_the_request(self, store: Store) -> None:
        low, other, high = new_job(priority=200), new_job(queue="other"), new_job(priority=1)
        low2, high2 = new_job(priority=200), new_job(priority=1)
        await enqueue(store, low, other, high, low2, high2)
        levels = [QueueLevel("default", 1), QueueLevel("other", 100), QueueLevel("default", 200)]

        claimed = await claim(store, levels=levels, limit=4)

        assert [c.job_id for c in claimed] == [high.id, high2.id, other.id, low.id]
        assert [c.job_id for c in await claim(store, levels=levels)] == [low2.id]

    async def test_queue_levels_outside_the_request_are_left_alone(self, store: Store) -> None:
        await enqueue(store, new_job(queue="other"), new_job(priority=99))

        assert await claim(store) == []

    async def test_a_claim_takes_no_more_than_its_limit(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(5)))

        assert len(await claim(store, limit=2)) == 2
        assert len(await claim(store, limit=10)) == 3

    async def test_a_claim_with_limit_zero_takes_nothing(self, store: Store) -> None:
        await enqueue_one(store)

        assert await claim(store, limit=0, suspects=0) == []

    async def test_a_claim_begins_beyond_the_seq_of_its_queue_level(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(3)))
        first, second, third = await claim(store)
        assert 0 < first.seq < second.seq < third.seq
        await store.claims.settle([change(c, Released()) for c in (first, second, third)], now=T0)

        claimed = await claim(store, levels=[QueueLevel("default", 100, first.seq)], now=at(1))

        assert [c.seq for c in claimed] == [second.seq, third.seq]

    @pytest.mark.parametrize("tenants", [(), ("acme", "globex")], ids=["all jobs", "of tenants"])
    async def test_what_became_due_lately_is_claimed_below_the_seq_as_well(
        self, store: Store, tenants: tuple[str, ...]
    ) -> None:
        early, late, later = [await enqueue_one(store, tenant="acme", now=at(seconds)) for seconds in (0, 0.7, 0.9)]
        levels = [QueueLevel("default", 100, 2**62)]

        assert [c.job_id for c in await claim(store, levels=levels, tenants=tenants, now=at(1))] == [late, later]
        assert [c.job_id for c in await claim(store, tenants=tenants, now=at(1))] == [early]

    async def test_a_kind_outside_the_request_is_left_for_others(self, store: Store) -> None:
        await enqueue(store, *(new_job(kind="unknown") for _ in range(60)))
        known = await enqueue_one(store)

        assert [c.job_id for c in await claim(store, limit=1)] == [known]
        assert len(await claim(store, kinds=["unknown"])) == 60

    async def test_a_job_is_not_claimed_before_it_is_due(self, store: Store) -> None:
        await enqueue_one(store, run_at=at(60))

        assert await claim(store, now=at(59)) == []

    async def test_a_paused_queue_gives_nothing_until_it_is_resumed(self, store: Store) -> None:
        await enqueue(store, new_job(), open_ := new_job(queue="open"))
        levels = [DEFAULT, QueueLevel("open", 100)]
        await pause(store, PauseScope.QUEUE, "default")

        assert [c.job_id for c in await claim(store, levels=levels)] == [open_.id]
        await store.control.resume(PauseScope.QUEUE, "default")
        assert len(await claim(store, levels=levels)) == 1

    async def test_a_paused_lane_gets_nothing_while_others_go_on(self, store: Store) -> None:
        await enqueue(store, new_job(), new_job())
        await pause(store, PauseScope.LANE, "general")

        assert await claim(store, lane="general") == []
        assert len(await claim(store, lane="fast", limit=1)) == 1
        await store.control.resume(PauseScope.LANE, "general")
        assert len(await claim(store, lane="general")) == 1

    async def test_a_pause_of_every_lane_holds_for_lanes_of_any_name(self, store: Store) -> None:
        await enqueue(store, new_job())
        await pause(store, PauseScope.LANE, EVERY_LANE)

        assert await claim(store, lane="general") == await claim(store, lane="unknown") == []
        await store.control.resume(PauseScope.LANE, EVERY_LANE)
        assert len(await claim(store, lane="general")) == 1

    async def test_a_kind_that_was_paused_after_its_jobs_became_ready_is_not_claimed(self, store: Store) -> None:
        await enqueue(store, new_job(), other := new_job(kind="other"))
        await pause(store, PauseScope.KIND, KIND)

        assert [c.job_id for c in await claim(store, kinds=[KIND, "other"])] == [other.id]
        await store.control.resume(PauseScope.KIND, KIND)
        assert len(await claim(store)) == 1

    async def test_attempts_are_counted_from_what_was_spent(self, store: Store) -> None:
        first = await start_one(store)
        await settle(store, first, Failed(OOPS))
        await store.promotion.promote(10, now=at(60))

        second = await claim_one(store, now=at(60))

        assert (first.attempt, second.attempt) == (1, 2)
        assert token(first) != token(second)
        record = await store.queries.job(first.job_id)
        assert record is not None
        assert record.attempt == 2

    async def test_a_job_that_was_lost_with_its_worker_is_taken_only_as_a_suspect(self, store: Store) -> None:
        await enqueue(store, suspect := new_job(), *(clean := [new_job() for _ in range(3)]))
        await claim_one(store)
        now = await crash(store)

        assert [c.job_id for c in await claim(store, limit=2, suspects=0, now=now)] == [job.id for job in clean[:2]]
        assert [c.job_id for c in await claim(store, limit=0, suspects=1, now=now)] == [suspect.id]
        assert await state(store, clean[2].id) is State.READY

    @pytest.mark.parametrize("tenants", [[], ["acme"]], ids=["all", "of a tenant"])
    async def test_a_claim_without_room_for_suspects_takes_none(self, store: Store, tenants: list[str]) -> None:
        await enqueue(store, suspect := new_job(tenant="acme"), clean := new_job(tenant="acme"))
        await claim_one(store)
        now = await crash(store)

        assert [c.job_id for c in await claim(store, suspects=0, tenants=tenants, now=now)] == [clean.id]
        assert await state(store, suspect.id) is State.READY

    async def test_suspects_are_taken_besides_the_limit(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(3)))
        lost = {c.job_id for c in await claim(store)}
        now = await crash(store)
        await enqueue(store, *(new_job() for _ in range(3)), now=now)

        claimed = await claim(store, limit=2, suspects=2, now=now)

        assert [c.crashes for c in claimed if c.job_id in lost] == [1, 1]
        assert [c.crashes for c in claimed if c.job_id not in lost] == [0, 0]
        assert [c.seq for c in claimed] == sorted(c.seq for c in claimed)

    @pytest.mark.req("W22")
    async def test_a_claim_for_tenants_passes_over_the_jobs_of_others(self, store: Store) -> None:
        await enqueue(store, *(new_job(tenant="globex") for _ in range(60)), untenanted := new_job())
        acme = [new_job(tenant="acme"), new_job(tenant="acme", priority=200), new_job(tenant="acme")]
        umbrella = new_job(tenant="umbrella")
        await enqueue(store, acme[0], umbrella, *acme[1:])
        levels = [DEFAULT, QueueLevel("default", 200)]

        assert await claim(store, levels=levels, tenants=["unknown"]) == []
        first = await claim(store, levels=levels, tenants=["acme", "umbrella"], limit=2)
        rest = await claim(store, levels=levels, tenants=["acme"])

        assert [c.job_id for c in first] == [acme[0].id, umbrella.id]
        assert [c.job_id for c in rest] == [acme[2].id, acme[1].id]
        left = await claim(store, levels=levels)
        assert {c.tenant for c in left} == {"globex", None}
        assert left[-1].job_id == untenanted.id

    @pytest.mark.req("W22")
    async def test_a_claim_for_tenants_takes_no_suspects_of_others(self, store: Store) -> None:
        await enqueue(store, *(new_job(tenant=tenant) for tenant in ("globex", "acme", "globex")), new_job())
        await claim(store)
        now = await crash(store)

        (suspect,) = await claim(store, tenants=["acme"], limit=0, suspects=5, now=now)

        assert (suspect.tenant, suspect.crashes) == ("acme", 1)
        assert len(await claim(store, limit=0, suspects=5, now=now)) == 3

    @pytest.mark.parametrize("suspects", [0, 1])
    async def test_suspects_do_not_hide_the_jobs_behind_them(self, store: Store, suspects: int) -> None:
        await enqueue(store, *(new_job() for _ in range(60)))
        await claim(store)
        now = await crash(store)
        clean = await enqueue_one(store, now=now)

        claimed = await claim(store, limit=1, suspects=suspects, now=now)

        assert len(claimed) == 1 + suspects
        assert clean in {c.job_id for c in claimed}

    async def test_a_peek_finds_every_queue_level_with_jobs_and_its_first_job(self, store: Store) -> None:
        await enqueue(
            store, new_job(kind="other"), new_job(), new_job(), new_job(queue="fast", priority=5),
            new_job(queue="later", run_at=at(60)), new_job(queue="foreign", kind="unknown"),
        )  # fmt: skip

        levels = await store.claims.peek([KIND, "other"], now=T0)

        assert {(level.queue, level.priority) for level in levels} == {("default", 100), ("fast", 5)}
        claimed = await claim(store, levels=[QueueLevel(n.queue, n.priority) for n in levels], kinds=[KIND, "other"])
        first = {(c.queue, c.priority): c.seq for c in reversed(claimed)}
        assert {(level.queue, level.priority): level.seq for level in levels} == first
        assert await store.claims.peek([KIND, "other"], now=T0) == []

    async def test_a_peek_at_levels_finds_their_first_job_beyond_a_seq(self, store: Store) -> None:
        await enqueue(
            store, new_job(kind="unknown"), new_job(queue="fast", priority=5), new_job(queue="fast", priority=6),
            new_job(queue="other"), now=at(1),
        )  # fmt: skip
        await enqueue(store, new_job(), new_job(), new_job(queue="fast", priority=5), now=at(2))
        first = {(level.queue, level.priority): level.seq for level in await store.claims.peek([KIND], now=at(2))}
        asked = [QueueLevel("fast", 5), QueueLevel("default", 100), QueueLevel("none", 1), QueueLevel("fast", 7)]

        found = await store.claims.peek_at([KIND], asked, now=at(2))

        assert sorted(found, key=lambda level: level.queue) == [
            QueueLevel("default", 100, first["default", 100]),
            QueueLevel("fast", 5, first["fast", 5]),
        ]
        (beyond,) = await store.claims.peek_at([KIND], [QueueLevel("fast", 5, first["fast", 5])], now=at(2))
        assert beyond.seq > first["fast", 5]
        assert await store.claims.peek_at([KIND], [beyond], now=at(2)) == []
        assert await store.claims.peek_at([KIND], [], now=at(2)) == []

    async def test_a_peek_at_a_level_reads_past_no_long_line_of_other_kinds(self, store: Store) -> None:
        await enqueue(store, *(new_job(kind="unknown") for _ in range(NEAR_JOBS - 1)), now=at(1))
        await enqueue(store, new_job(), now=at(2))
        assert len(await store.claims.peek_at([KIND], [DEFAULT], now=at(2))) == 1

        await enqueue(store, new_job(kind="unknown"), now=at(1))

        assert await store.claims.peek_at([KIND], [DEFAULT], now=at(2)) == []
        assert len(await store.claims.peek([KIND], now=at(2))) == 1
