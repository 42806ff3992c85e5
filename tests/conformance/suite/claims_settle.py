"""What a settlement writes."""

from datetime import timedelta

import pytest

from dutiful.core.errors import ClaimLost, DataRefused
from dutiful.core.outcome import Cancelled, Done, Failed, Outcome, Partial, Released, Snoozed, TimedOut
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import Completion, RefusalReason
from suite.builders import (
    ADA,
    BACKOFF,
    OOPS,
    T0,
    at,
    change,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    finish_one,
    history,
    new_id,
    new_job,
    outcomes,
    settle,
    start_one,
    state,
    states,
    token,
)


@pytest.mark.req("W28", "W29")
class ClaimSettleSuite:
    async def test_a_completed_job_has_its_result_and_its_times(self, store: Store) -> None:
        claimed = await start_one(store, now=at(1))

        assert await complete(store, claimed, result='{"sum": 3}', now=at(2)) == []

        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert (record.state, record.result, record.errors) == (State.COMPLETED, {"sum": 3}, None)
        assert (record.started_at, record.finished_at) == (at(1), at(2))
        assert (record.worker_id, record.attempt) == (ADA, 1)
        assert await store.queries.attempts(claimed.job_id) == []
        assert await store.queries.check_places() == []

    async def test_many_are_completed_at_once_each_with_its_own_result(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(50)))
        claims = await claim(store)

        assert (
            await store.claims.complete(
                [Completion(c.job_id, c.claim_id, str(n)) for n, c in enumerate(claims)], now=T0
            )
            == []
        )

        records = await store.queries.outcomes([c.job_id for c in claims])
        assert {r.id: r.result for r in records} == {c.job_id: n for n, c in enumerate(claims)}

    @pytest.mark.parametrize(
        ("outcome", "final", "result", "errors"),
        [
            (Done('"ok"'), State.COMPLETED, "ok", None),
            (Done(), State.COMPLETED, None, None),
            (Partial('"most"', (OOPS,)), State.COMPLETED_WITH_ERRORS, "most", [OOPS]),
            (Failed(OOPS, final=True), State.FAILED, None, [OOPS]),
            (Cancelled("no use"), State.CANCELLED, None, [{"type": "Cancelled", "message": "no use"}]),
        ],
    )
    async def test_a_final_outcome_is_kept(
        self, store: Store, outcome: Outcome, final: State, result: object, errors: object
    ) -> None:
        claimed = await start_one(store)

        assert await settle(store, claimed, outcome, now=at(2)) == []

        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert (record.state, record.result, record.errors or None) == (final, result, errors)
        assert (record.finished_at, record.attempt) == (at(2), 1)
        assert await store.queries.check_places() == []

    async def test_a_job_that_failed_for_good_leaves_a_dead_letter(self, store: Store) -> None:
        await finish_one(store)
        assert (await store.queries.stats(timedelta(hours=1), now=T0)).dead_letters == 0

        await finish_one(store, Failed(OOPS, final=True))

        assert (await store.queries.stats(timedelta(hours=1), now=T0)).dead_letters == 1

    @pytest.mark.parametrize(
        ("outcome", "name"), [(Failed(OOPS), "failed"), (TimedOut(timedelta(minutes=1), OOPS), "timed_out")]
    )
    async def test_a_failed_attempt_is_recorded_and_tried_again_later(
        self, store: Store, outcome: Outcome, name: str
    ) -> None:
        claimed = await start_one(store)

        assert await settle(store, claimed, outcome, now=at(2)) == []

        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert (record.state, record.run_at, record.attempt) == (State.SCHEDULED, at(2) + BACKOFF, 1)
        (attempt,) = await store.queries.attempts(claimed.job_id)
        assert (attempt.job_id, attempt.claim_id, attempt.attempt) == (claimed.job_id, claimed.claim_id, 1)
        assert (attempt.outcome, attempt.error, attempt.worker_id) == (name, OOPS, ADA)
        assert (attempt.claimed_at, attempt.ended_at) == (T0, at(2))

    async def test_a_snoozed_job_waits_and_has_spent_no_attempt(self, store: Store) -> None:
        claimed = await start_one(store)

        await settle(store, claimed, Snoozed(timedelta(seconds=60)))

        assert await state(store, claimed.job_id) is State.SCHEDULED
        assert await history(store, claimed.job_id) == [(1, "snoozed")]
        await store.promotion.promote(1, now=at(60))
        assert (await claim_one(store, now=at(60))).attempt == 1

    async def test_of_consecutive_rejections_by_one_breaker_only_the_last_is_kept(self, store: Store) -> None:
        claimed = await start_one(store)
        for second, breaker in enumerate([None, "mail", "mail", "maps", "maps", "maps"]):
            because = None if breaker is None else {**OOPS, "breaker": breaker}
            await settle(store, claimed, Snoozed(timedelta(0), because), now=at(second))
            await store.promotion.sweep(1, now=at(second))  # none of these breakers is open any more
            claimed = await claim_one(store, now=at(second))

        kept = await store.queries.attempts(claimed.job_id)

        assert [(a.error or {}).get("breaker") for a in kept] == [None, "mail", "maps"]
        assert [a.ended_at for a in kept] == [at(0), at(2), at(5)]
        assert await settle(store, claimed, Failed(OOPS), now=at(6)) == []
        assert len(await store.queries.attempts(claimed.job_id)) == 4

    async def test_a_job_snoozed_without_delay_goes_to_the_end_of_its_queue(self, store: Store) -> None:
        await enqueue(store, first := new_job(), second := new_job())

        await settle(store, await claim_one(store), Snoozed(timedelta(0)), now=at(1))

        assert [c.job_id for c in await claim(store, now=at(1))] == [second.id, first.id]

    @pytest.mark.req("S4", "S81")
    @pytest.mark.parametrize("began", [True, False])
    async def test_a_released_job_has_its_old_place_and_its_claim_stays_on_record(
        self, store: Store, began: bool
    ) -> None:
        await enqueue(store, first := new_job(), second := new_job())
        claimed = await claim_one(store, now=at(1))

        assert await settle(store, claimed, Released(began), now=at(2)) == []
        (refused,) = await settle(store, claimed, Released(began), now=at(3))

        assert refused.reason is RefusalReason.REPEATED
        (row,) = await store.queries.attempts(first.id)
        assert (row.claim_id, row.attempt, row.outcome) == (claimed.claim_id, 1, "released")
        assert (row.worker_id, row.claimed_at, row.ended_at, row.error) == (ADA, at(1), at(2), None)
        (queue,) = await store.queries.queues()
        assert queue.oldest_ready_at == T0, "as long as it has been due"
        again, other = await claim(store)
        assert (again.job_id, other.job_id) == (first.id, second.id)
        assert (again.attempt, again.seq) == (1, claimed.seq)

    async def test_a_lost_job_is_ready_again_and_its_crash_is_counted(self, store: Store) -> None:
        claimed = await start_one(store)

        now = await crash(store)

        assert await history(store, claimed.job_id) == [(1, "lost")]
        again = await claim_one(store, limit=0, suspects=1, now=now)
        assert (again.job_id, again.attempt, again.crashes) == (claimed.job_id, 1, 1)

    async def test_a_job_that_lost_its_worker_too_often_fails(self, store: Store) -> None:
        job_id, now = (await start_one(store)).job_id, T0
        for _ in range(2):
            now = await crash(store, now=now)
            await claim_one(store, limit=0, suspects=1, now=now)
        await crash(store, now=now)

        record = await store.queries.job(job_id)
        assert record is not None
        assert (record.state, record.crashes) == (State.FAILED, 3)
        assert await outcomes(store, job_id) == ["lost", "lost"]

    async def test_one_call_settles_different_outcomes(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(5)))
        claims = await claim(store)
        outcomes: list[Outcome] = [
            Done(),
            Failed(OOPS),
            Failed(OOPS, final=True),
            Snoozed(timedelta(0)),
            Cancelled("no use"),
        ]

        assert await store.claims.settle([change(c, o) for c, o in zip(claims, outcomes, strict=True)], now=T0) == []

        expected = [State.COMPLETED, State.SCHEDULED, State.FAILED, State.READY, State.CANCELLED]
        assert await states(store, [c.job_id for c in claims]) == expected
        assert await store.queries.check_places() == []

    @pytest.mark.parametrize("text", ["\\u0000", "\\ud800"])
    async def test_an_outcome_that_cannot_be_stored_is_refused_and_changes_nothing(
        self, store: Store, text: str
    ) -> None:
        await enqueue(store, new_job(), new_job())
        odd, plain = await claim(store)
        expected = [State.COMPLETED, State.COMPLETED]

        try:
            await store.claims.complete(
                [Completion(odd.job_id, odd.claim_id, f'"{text}"'), Completion(plain.job_id, plain.claim_id)]
            )
        except DataRefused:
            expected = [State.RUNNING, State.RUNNING]

        assert await states(store, [odd.job_id, plain.job_id]) == expected


def table() -> str:
    """A name for a table of the handler; that it can be created shows that it does not exist."""
    return f"effect_{new_id().hex}"


class ClaimTransactionSuite:
    async def test_leaving_the_block_completes_the_job_with_its_result(self, store: Store) -> None:
        claimed, name = await start_one(store), table()

        async with store.claims.transaction(token(claimed), lambda: '{"n": 1}') as transaction:
            await transaction.execute(f"CREATE TABLE {name} (n integer)")

        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert (record.state, record.result) == (State.COMPLETED, {"n": 1})
        with pytest.raises(Exception, match=name):  # it is there already
            await create(store, name)

    async def test_an_error_in_the_block_rolls_its_writes_back_and_leaves_the_job_running(self, store: Store) -> None:
        claimed, name = await start_one(store), table()

        with pytest.raises(ZeroDivisionError):
            async with store.claims.transaction(token(claimed), lambda: None) as transaction:
                await transaction.execute(f"CREATE TABLE {name} (n integer)")
                raise ZeroDivisionError

        assert await state(store, claimed.job_id) is State.RUNNING
        await create(store, name)
        assert await complete(store, claimed) == []

    async def test_a_lost_claim_rolls_its_writes_back(self, store: Store) -> None:
        lost, name = await start_one(store), table()
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)

        with pytest.raises(ClaimLost):
            async with store.claims.transaction(token(lost), lambda: None) as transaction:
                await transaction.execute(f"CREATE TABLE {name} (n integer)")

        assert await state(store, held.job_id) is State.RUNNING
        await create(store, name)

    async def test_a_statement_that_fails_leaves_the_job_running(self, store: Store) -> None:
        claimed, name = await start_one(store), table()

        with pytest.raises(Exception, match="no_such_table"):
            async with store.claims.transaction(token(claimed), lambda: None) as transaction:
                await transaction.execute(f"CREATE TABLE {name} (n integer)")
                await transaction.execute("INSERT INTO no_such_table VALUES (1)")

        assert await state(store, claimed.job_id) is State.RUNNING
        await create(store, name)

    async def test_a_job_completed_in_a_block_is_not_run_again(self, store: Store) -> None:
        claimed = await start_one(store)

        async with store.claims.transaction(token(claimed), lambda: None):
            pass

        assert await claim(store) == []
        with pytest.raises(ClaimLost):
            async with store.claims.transaction(token(claimed), lambda: None):
                pass
        assert await store.queries.check_places() == []


async def create(store: Store, name: str) -> None:
    """Create the table in the transaction of another job."""
    async with store.claims.transaction(token(await start_one(store)), lambda: None) as transaction:
        await transaction.execute(f"CREATE TABLE {name} (n integer)")
