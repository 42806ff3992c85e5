"""Workers in plain SQL: sessions that dequeue, renew and settle by the published functions, beside Python workers."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest
from fault_jobs import executions, fleet, nothing
from msgspec.structs import replace
from sql_sessions import Row, Session

from databases import CleanDatabase, OwnTransaction
from dutiful.core.job import Scope, Unique
from dutiful.core.outcome import Failed
from dutiful.core.retry.policy import Retry
from dutiful.core.settle import Policy, decide
from dutiful.core.states import State
from dutiful.maintenance.rescuer import Rescuer
from dutiful.store import Store
from dutiful.store.control import PauseScope
from faults import until
from suite.builders import (
    DEFAULT,
    KIND,
    claim,
    crash,
    enqueue,
    enqueue_one,
    history,
    new_job,
    pause,
    start_one,
    state,
)

pytestmark = pytest.mark.parametrize("backend", ["postgres18", "postgres16"])


@pytest.fixture
def url(backend: str, store: Store, request: pytest.FixtureRequest) -> str:
    clean: CleanDatabase = request.getfixturevalue(backend.replace("postgres", "clean"))
    return clean.url


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    opened = Session(url)
    yield opened
    opened.connection.close()


@pytest.fixture
def other(url: str) -> Iterator[Session]:
    opened = Session(url)
    yield opened
    opened.connection.close()


# --- beside Python workers


@pytest.mark.parametrize("scope", [Scope.QUEUED, Scope.ACTIVE])
async def test_a_key_that_a_jobs_options_do_not_name_is_freed(store: Store, session: Session, scope: Scope) -> None:
    """As those of retries, which keep others from running the same job again at the same time."""
    await enqueue_one(store, inherits=(Unique("retry of another", scope),))
    job = session.dequeue_one(KIND)
    assert session.ask("complete_job(%s, %s)", job["job_id"], job["claim_id"])

    assert session.rows("select key from dutiful.unique_key") == []
    assert await store.queries.check_places() == []


@pytest.mark.req("S8", "S18")
async def test_sessions_and_a_worker_process_share_a_queue_and_run_each_job_once(
    store: Store, session: Session, other: Session, tmp_path: Path
) -> None:
    async with fleet(store, tmp_path) as started:
        jobs = {session.ask("enqueue('nothing')") for _ in range(20)}
        held = [session.dequeue_one("nothing"), *other.dequeue("nothing", limit=3)]
        await started.start().ready(store)
        await until(lambda: _all_final(store, jobs - {row["job_id"] for row in held}), "the worker has run the rest")

        assert session.ask("renew_job(%s, %s)", held[0]["job_id"], held[0]["claim_id"]) == "held"
        answers = [session.ask("complete_job(%s, %s, '7')", row["job_id"], row["claim_id"]) for row in held]
        repeats = [session.ask("complete_job(%s, %s, '8')", row["job_id"], row["claim_id"]) for row in held]

    by_python = executions(tmp_path)
    assert (answers, repeats) == (["applied"] * 4, ["repeated"] * 4)
    assert sorted(by_python) == sorted(jobs - {row["job_id"] for row in held})
    assert {session.look_up(row["job_id"])["result"] for row in held} == {7}
    assert {await state(store, job_id) for job_id in jobs} == {State.COMPLETED}
    assert await store.queries.check_places() == []


@pytest.mark.req("S5", "S6")
async def test_the_lease_of_a_session_that_died_is_rescued_and_its_late_outcome_refused(
    store: Store, session: Session, other: Session, tmp_path: Path
) -> None:
    async with fleet(store, tmp_path) as started:
        handle = await nothing.enqueue()
        lost = session.dequeue_one("nothing", lease=timedelta(seconds=1))
        assert other.dequeue("nothing") == []
        session.connection.close()
        await started.start("--lease", "2s").ready(store)
        await until(lambda: _all_final(store, {handle.id}), "the worker has rescued and run it")

    assert executions(tmp_path) == [handle.id]
    assert other.ask("renew_job(%s, %s)", lost["job_id"], lost["claim_id"]) == "lost"
    for call in ("complete_job(%s, %s)", "fail_job(%s, %s, 'late')", "release_job(%s, %s)"):
        assert other.ask(call, lost["job_id"], lost["claim_id"]) == "lost"
    assert [outcome for _, outcome in await history(store, handle.id)] == ["lost", "refused"]
    assert await state(store, handle.id) is State.COMPLETED


@pytest.mark.req("S6")
@pytest.mark.parametrize("rescued", [True, False])
async def test_a_renewal_waits_for_a_rescue_and_is_held_only_if_it_renewed(
    store: Store, session: Session, other: Session, url: str, rescued: bool
) -> None:
    session.enqueue()
    held = session.dequeue_one(lease=timedelta(microseconds=1))
    renew = "renew_job(%s, %s)", held["job_id"], held["claim_id"]
    with other.connection.transaction(force_rollback=not rescued):
        (maintained,) = other.rows("select rescued from dutiful.maintain_jobs(array[%s])", KIND)
        assert maintained["rescued"] == 1
        if rescued:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                session.ask(*renew)
        renewal = asyncio.create_task(asyncio.to_thread(session.ask, *renew))
        await OwnTransaction(store, url).wait_for_a_lock()

    assert await renewal == ("lost" if rescued else "held")
    leases = other.rows("select expires_at > now() as live from dutiful.lease")
    assert leases == ([] if rescued else [{"live": True}])


async def test_a_renewal_that_waited_for_a_cancel_reports_it(
    store: Store, session: Session, other: Session, url: str
) -> None:
    session.enqueue()
    held = session.dequeue_one()
    with other.connection.transaction():
        other.ask("cancel(%s, 'stop', null)", held["job_id"])
        renewal = asyncio.create_task(
            asyncio.to_thread(session.ask, "renew_job(%s, %s)", held["job_id"], held["claim_id"])
        )
        await OwnTransaction(store, url).wait_for_a_lock()
    assert await renewal == "cancel_requested"


async def test_a_session_cannot_settle_the_claim_of_a_python_worker(store: Store, session: Session) -> None:
    held = await start_one(store)
    wrong = held.claim_id + 1

    assert session.ask("renew_job(%s, %s)", held.job_id, wrong) == "lost"
    for call in ("complete_job(%s, %s)", "complete_job(%s, %s, null, '[{}]')", "fail_job(%s, %s, 'no')"):
        assert session.ask(call, held.job_id, wrong) == "lost"

    assert await state(store, held.job_id) is State.RUNNING
    (row,) = session.rows("select attempt, claim_id from dutiful.lease")
    assert row == {"attempt": 1, "claim_id": held.claim_id}


async def test_a_worker_in_plpgsql_claims_in_one_transaction_and_settles_in_another(
    store: Store, session: Session
) -> None:
    jobs = [await enqueue_one(store, payload=f'{{"n": {n}}}') for n in range(3)]

    session.connection.execute("""
        do $$
        declare v_job record;
        begin
            loop
                select * into v_job from dutiful.dequeue(array['greet']);
                exit when not found;
                commit;
                if v_job.payload ->> 'n' = '1' then
                    perform dutiful.fail_job(v_job.job_id, v_job.claim_id, 'one is odd', p_retry => false);
                else
                    perform dutiful.complete_job(v_job.job_id, v_job.claim_id, v_job.payload -> 'n');
                end if;
                commit;
            end loop;
        end $$""")

    assert [(await state(store, job_id)).value for job_id in jobs] == ["completed", "failed", "completed"]
    assert [session.look_up(job_id)["result"] for job_id in jobs] == [0, None, 2]


# --- dequeue


@pytest.mark.req("S13", "S14")
async def test_jobs_come_by_priority_then_due_time_then_arrival(store: Store, session: Session) -> None:
    def put(n: int, **options: Any) -> None:
        named = "".join(f", p_{name} => %s" for name in options)
        session.rows(f"select dutiful.enqueue('greet', %s{named})", f'{{"n": {n}}}', *options.values())

    put(5, queue="other", priority=200)
    put(3)
    put(4, queue="other")
    put(2, run_at="2020-01-01Z", queue="other")
    put(1, priority=1)
    put(9, delay=timedelta(hours=1))
    session.rows("select dutiful.enqueue('unknown')")

    assert [session.dequeue_one()["payload"]["n"] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert session.dequeue() == []


async def test_only_the_named_queues_kinds_and_tenants_are_served(store: Store, session: Session) -> None:
    await enqueue(store, new_job(queue="a"), new_job(queue="b", kind="other"), new_job(queue="b", tenant="acme"))

    assert session.dequeue(queues=["c"], limit=9) == session.dequeue("unknown", limit=9) == []
    assert [row["tenant"] for row in session.dequeue(tenants=["acme"], limit=9)] == ["acme"]
    assert [row["kind"] for row in session.dequeue(KIND, "other", queues=["b"], limit=9)] == ["other"]
    assert [row["queue"] for row in session.dequeue(KIND, "other", limit=9)] == ["a"]


@pytest.mark.req("S15")
async def test_jobs_that_another_session_has_locked_are_skipped(store: Store, session: Session, other: Session) -> None:
    first, second = await enqueue_one(store), await enqueue_one(store)
    with session.connection.transaction():
        assert session.dequeue_one()["job_id"] == first
        assert other.dequeue_one()["job_id"] == second
        assert other.dequeue() == []


@pytest.mark.req("S17")
async def test_a_lease_lasts_five_minutes_unless_said_otherwise(store: Store, session: Session) -> None:
    await enqueue(store, new_job(), new_job())
    first, second = session.dequeue_one(), session.dequeue_one(lease=timedelta(hours=1))

    lengths = "select expires_at - claimed_at as length, expires_at from dutiful.lease order by claim_id"
    assert [row["length"] for row in session.rows(lengths)] == [timedelta(minutes=5), timedelta(hours=1)]
    assert [row["expires_at"] for row in session.rows(lengths)] == [first["expires_at"], second["expires_at"]]
    assert session.ask("renew_job(%s, %s, '2 hours')", first["job_id"], first["claim_id"]) == "held"
    assert session.look_up(first["job_id"])["expires_at"] > second["expires_at"]


async def test_a_session_keeps_its_worker_id_unless_one_is_given(
    store: Store, session: Session, other: Session
) -> None:
    await enqueue(store, *(new_job() for _ in range(5)))
    given, setting = uuid4(), uuid4()
    ids = [_worker(session, session.dequeue_one()) for _ in range(2)]
    ids += [_worker(other, other.dequeue_one()), _worker(other, other.dequeue_one(worker=given))]
    other.rows("select set_config('dutiful.worker', %s, false)", str(setting))
    ids.append(_worker(other, other.dequeue_one()))

    assert ids[0] == ids[1] != ids[2] and ids[3:] == [given, setting]


async def test_a_worker_id_that_is_no_uuid_is_refused_with_its_remedy(store: Store, session: Session) -> None:
    job_id = await enqueue_one(store)
    session.rows("select set_config('dutiful.worker', 'billing-1', false)")

    with pytest.raises(
        psycopg.errors.InvalidParameterValue, match=r"dutiful\.worker is no UUID: 'billing-1'"
    ) as refused:
        session.dequeue()
    assert "gen_random_uuid()" in str(refused.value.diag.message_hint)

    assert session.dequeue_one(worker=uuid4())["job_id"] == job_id


async def test_a_repeat_of_a_call_that_cancelled_its_job_does_not_seem_to_have_completed_it(
    store: Store, session: Session
) -> None:
    answers = {}
    for call in ("complete_job(%s, %s)", "fail_job(%s, %s, 'm')", "release_job(%s, %s)"):
        held = await start_one(store)
        session.rows("select * from dutiful.cancel(%s, 'no use', null)", held.job_id)
        answers[call[:4]] = [session.ask(call, held.job_id, held.claim_id) for _ in range(2)]

    assert answers == {
        "comp": ["cancelled", "lost"],
        "fail": ["cancelled", "repeated"],
        "rele": ["cancelled", "repeated"],
    }


async def test_a_pause_holds_for_sessions(store: Store, session: Session) -> None:
    await enqueue_one(store)
    for scope, name in ((PauseScope.LANE, "sql"), (PauseScope.QUEUE, "default"), (PauseScope.KIND, KIND)):
        await pause(store, scope, name)
        assert session.dequeue() == []
        await store.control.resume(scope, name)

    await until(lambda: _moved(store), "the job is ready again")
    assert len(session.dequeue()) == 1


async def test_a_suspect_comes_alone_in_its_turn_and_never_if_unwanted(store: Store, session: Session) -> None:
    jobs = [new_job() for _ in range(4)]
    await enqueue(store, *jobs)
    suspect, *_ = await claim(store, limit=1)
    now = await crash(store)
    await enqueue(store, late := new_job(), now=now)

    assert suspect.queue == DEFAULT.queue
    clean = [job.id for job in jobs[1:]] + [late.id]
    assert [row["job_id"] for row in session.dequeue(limit=2, suspects=False)] == clean[:2]
    assert [(row["job_id"], row["crashes"]) for row in session.dequeue(limit=9)] == [(suspect.job_id, 1)]
    assert [row["job_id"] for row in session.dequeue(limit=9)] == clean[2:]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"limit": 0}, "1 or more"),
        ({"limit": None}, "1 or more"),
        ({"lease": timedelta(0)}, "at most a day"),
        ({"lease": None}, "at most a day"),
        ({"lease": timedelta(days=1, seconds=1)}, "at most a day"),
    ],
)
async def test_a_dequeue_without_a_limit_or_a_fitting_lease_is_refused(
    store: Store, session: Session, wrong: dict[str, Any], message: str
) -> None:
    held = await start_one(store)

    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
        session.dequeue(**wrong)
    if "lease" in wrong:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
            session.ask("renew_job(%s, %s, %s)", held.job_id, held.claim_id, wrong["lease"])


# --- settle


@pytest.mark.parametrize("max_attempts", [1, 3, 40])
@pytest.mark.parametrize("attempt", [1, 2, 3, 12, 40])
@pytest.mark.parametrize("final", [False, True])
async def test_a_failure_is_decided_as_python_does(
    store: Store, session: Session, attempt: int, max_attempts: int, final: bool
) -> None:
    held = await start_one(store, max_attempts=max_attempts)
    session.connection.execute("update dutiful.lease set attempt = %s", [attempt])
    outcome, now_held = Failed({"type": "E", "message": "m"}, final=final), replace(held, attempt=attempt)
    shortest, longest = (decide(now_held, outcome, Policy(), max_attempts, uniform) for uniform in (min, max))

    answer = session.ask("fail_job(%s, %s, 'm', %s)", held.job_id, held.claim_id, not final)

    found = session.look_up(held.job_id)
    assert (answer, found["state"]) == ("failed" if shortest.to is State.FAILED else "retried", shortest.to.value)
    assert found["attempt"] == shortest.attempt
    if shortest.delay is not None and longest.delay is not None:
        (row,) = session.rows("select a.next_at - a.ended_at as delay from dutiful.attempt a")
        assert shortest.delay <= row["delay"] <= longest.delay


@pytest.mark.parametrize(("delay", "place"), [(0, State.READY), (-5, State.READY), (60, State.SCHEDULED)])
async def test_the_caller_may_give_the_delay(store: Store, session: Session, delay: int, place: State) -> None:
    held = await start_one(store)
    given = timedelta(seconds=delay)
    change = decide(
        held, Failed({"type": "E"}, retry_after=given), Policy(retry=Retry()), held.max_attempts, lambda low, _: low
    )

    assert session.ask("fail_job(%s, %s, 'm', null, %s)", held.job_id, held.claim_id, given) == "retried"

    (row,) = session.rows("select a.next_at - a.ended_at as delay, a.outcome from dutiful.attempt a")
    assert await state(store, held.job_id) is change.to is place
    assert row == {"delay": change.delay, "outcome": "failed"}


async def test_an_error_has_a_class_and_a_fingerprint_and_no_secret(store: Store, session: Session) -> None:
    def failed(message: str) -> Row:
        session.rows("select dutiful.enqueue('greet')")
        job = session.dequeue_one()
        call = "fail_job(%s, %s, %s, false, p_type => 'SmtpError')"
        assert session.ask(call, job["job_id"], job["claim_id"], message) == "failed"
        (error,) = session.look_up(job["job_id"])["errors"]
        found: Row = error
        return found

    one, two, other = failed("mailbox 17 is full"), failed("mailbox 18 is full"), failed("no route")
    secrets = [
        failed(message)
        for message in ("password=hunter2 refused", "login failed: password=hunter2", "postgresql://ada:hunter2@db/x")
    ]
    # By a client, as Python workers are: what is left of it says what happened.
    redacted = "db_function billing.sync failed: PGPASSWORD=[redacted] psql: no route"
    kept, long = failed(redacted), failed("x " * 1000)

    assert (one["type"], one["message"], one["class"]) == ("SmtpError", "mailbox 17 is full", "non_retryable")
    assert one["fingerprint"] == two["fingerprint"] != other["fingerprint"]
    assert "hunter2" not in str(secrets) and secrets[0]["message"] == "(withheld: it has a password)"
    assert kept["message"] == redacted
    assert len(long["message"]) == 500 and long["message"].endswith("(2000 characters in all)")
    assert session.rows("select count(*) as n from dutiful.dead_letter where error_type = 'SmtpError'") == [{"n": 8}]


@pytest.mark.parametrize("call", ["fail_job(%s, %s, 'm')", "release_job(%s, %s)"])
async def test_a_job_that_is_to_be_cancelled_does_not_live_on(store: Store, session: Session, call: str) -> None:
    held = await start_one(store)
    session.rows("select * from dutiful.cancel(%s, 'no use', null)", held.job_id)

    assert session.ask("renew_job(%s, %s)", held.job_id, held.claim_id) == "cancel_requested"
    assert session.look_up(held.job_id)["cancel_requested"]
    assert session.ask(call, held.job_id, held.claim_id) == "cancelled"

    found = session.look_up(held.job_id)
    assert (found["state"], found["errors"][0]["message"]) == ("cancelled", "no use")


async def test_a_completion_commits_with_the_callers_own_writes(store: Store, session: Session) -> None:
    held = await start_one(store)
    with session.connection.transaction(force_rollback=True):
        assert session.ask("complete_job(%s, %s)", held.job_id, held.claim_id) == "applied"
    assert await state(store, held.job_id) is State.RUNNING

    errors = '[{"type": "E", "message": "one of two"}]'
    assert session.ask("complete_job(%s, %s, '2', %s)", held.job_id, held.claim_id, errors) == "applied"
    found = session.look_up(held.job_id)
    assert (found["state"], found["result"]) == ("completed_with_errors", 2)
    assert found["errors"] == [{"type": "E", "message": "one of two"}]


@pytest.mark.parametrize(
    ("result", "errors", "message"),
    [
        ("jsonb_build_object('x', repeat('x', 1048576))", "null", "p_result has 1048"),
        ("null", "'[]'", "one object or more"),
        ("null", "'{}'", "one object or more"),
        ("null", '\'[{"type": "E"}, "no object"]\'', "one object or more"),
        ("null", "jsonb_build_array(jsonb_build_object('item', repeat('x', 262144)))", "p_errors has 262"),
    ],
)
async def test_a_result_or_errors_that_would_fill_every_list_are_refused(
    store: Store, session: Session, result: str, errors: str, message: str
) -> None:
    held = await start_one(store)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
        session.ask(f"complete_job(%s, %s, {result}, {errors})", held.job_id, held.claim_id)
    assert await state(store, held.job_id) is State.RUNNING


async def test_secrets_in_the_errors_of_a_completion_are_withheld(store: Store, session: Session) -> None:
    held = await start_one(store)
    errors = msgspec.json.encode(
        [{"message": "password=hunter2hunter2", "item": 7}, {"type": "E", "message": "x" * 900}]
    )

    assert session.ask("complete_job(%s, %s, null, %s)", held.job_id, held.claim_id, errors.decode()) == "applied"

    first, second = session.look_up(held.job_id)["errors"]
    assert (first["type"], first["item"]) == ("Error", 7) and "withheld" in first["message"]
    assert len(second["message"]) == 500


@pytest.mark.req("S4", "S81")
async def test_a_released_job_keeps_its_place_and_its_attempts_and_the_claim_stays_on_record(
    store: Store, session: Session
) -> None:
    first, second = await enqueue_one(store), await enqueue_one(store)
    held = session.dequeue_one()
    release = "release_job(%s, %s)", held["job_id"], held["claim_id"]

    assert [session.ask(*release), session.ask(*release)] == ["applied", "repeated"]

    again = session.dequeue(limit=2)
    assert [row["job_id"] for row in again] == [first, second]
    assert again[0]["attempt"] == 1 and await history(store, first) == [(1, "released")]
    (record,) = session.rows("select claim_id, claimed_at, worker_id from dutiful.attempt")
    assert record["claim_id"] == held["claim_id"] and record["claimed_at"] == held["expires_at"] - timedelta(minutes=5)


async def test_a_release_does_not_make_a_job_look_younger(store: Store, session: Session) -> None:
    due = "select due_at from dutiful.queue_level_heads(null, '{}', 1000)"
    await enqueue_one(store)
    before = session.rows(due)
    held = session.dequeue_one()
    session.ask("release_job(%s, %s)", held["job_id"], held["claim_id"])
    assert session.rows(due) == before


@pytest.mark.parametrize("column", ["attempt", "crashes"])
async def test_a_row_with_the_highest_number_stops_neither_its_queue_nor_the_rescue(
    store: Store, session: Session, column: str
) -> None:
    by_session, by_worker = await enqueue_one(store), await enqueue_one(store)
    session.connection.execute(f"update dutiful.ready set {column} = 2147483647")

    assert session.next_job(lease=timedelta(microseconds=1)) == by_session
    claimed = await claim(store, suspects=1)
    assert [one.job_id for one in claimed] == [by_worker]

    session.connection.execute("update dutiful.lease set expires_at = clock_timestamp()")
    assert await Rescuer(store, {}).rescue(await store.claims.expired(9), expired_only=True) == 2
    assert await store.queries.check_places() == []


async def test_many_leases_are_renewed_but_those_that_another_transaction_holds(
    store: Store, session: Session, other: Session
) -> None:
    for _ in range(3):
        session.enqueue()
    free, locked, gone = session.dequeue(limit=3, lease=timedelta(minutes=1))
    session.ask("complete_job(%s, %s)", gone["job_id"], gone["claim_id"])
    jobs, claims = ([row[name] for row in (free, locked, gone)] for name in ("job_id", "claim_id"))
    renew = "select claim_id, answer from dutiful.renew_jobs(%s, %s, '1 hour') order by claim_id", jobs, claims

    with other.connection.transaction():
        other.ask("cancel(%s, 'stop', null)", locked["job_id"])
        answers = [row["answer"] for row in session.rows(*renew)]
    after = [row["answer"] for row in session.rows(*renew)]

    assert (answers, after) == (["held", "locked", "lost"], ["held", "cancel_requested", "lost"])
    left = session.rows("select count(*) as n from dutiful.lease where expires_at > now() + interval '50 minutes'")
    assert left == [{"n": 2}]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="of one length"):
        session.rows("select dutiful.renew_jobs(%s, %s)", jobs, claims[:1])


async def test_the_functions_restore_the_tenant_of_their_callers_transaction(store: Store, session: Session) -> None:
    await enqueue(store, new_job(), new_job(), new_job())
    with session.connection.transaction():
        session.rows("select set_config('dutiful.tenant', 'acme', true)")
        jobs = session.dequeue(limit=3)
        calls = ("complete_job(%s, %s)", "fail_job(%s, %s, 'm')", "release_job(%s, %s)")
        for job, call in zip(jobs, calls, strict=True):
            session.ask("renew_job(%s, %s)", job["job_id"], job["claim_id"])
            session.ask(call, job["job_id"], job["claim_id"])
            assert session.rows("select current_setting('dutiful.tenant') as t") == [{"t": "acme"}]


def _worker(session: Session, job: Row) -> UUID:
    (row,) = session.rows("select worker_id from dutiful.lease where job_id = %s", job["job_id"])
    found: UUID = row["worker_id"]
    return found


async def _all_final(store: Store, jobs: set[UUID]) -> bool:
    return all([(await state(store, job_id)).final for job_id in jobs])


async def _moved(store: Store) -> bool:
    await store.promotion.sweep(10)
    return bool(await store.claims.peek([KIND]))


def test_claims_that_were_invented_leave_a_few_records_and_real_ones_always(session: Session) -> None:
    job_id = session.ask("enqueue('nothing')")
    held = session.dequeue_one("nothing")
    for number in range(10_000, 10_030):
        assert session.ask("complete_job(%s, %s)", job_id, number) == "lost"
    session.connection.execute("update dutiful.lease set expires_at = now() - interval '1 second'")
    session.connection.execute("select dutiful.rescue_expired(array['nothing'], 10, null)")

    assert session.ask("complete_job(%s, %s)", job_id, held["claim_id"]) == "lost"
    refused = session.connection.execute("select claim_id from dutiful.attempt where outcome = 'refused' order by id")
    assert [row["claim_id"] for row in refused] == [*range(10_000, 10_020), held["claim_id"]]
