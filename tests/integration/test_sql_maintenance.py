"""maintain_jobs: promotion and rescue for workers in SQL, decided and recorded as the leader's services do."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from databases import CleanDatabase
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE
from dutiful.delivery.postgres import read_hint
from dutiful.maintenance.rescuer import Rescuer
from dutiful.store import Store
from dutiful.store.leadership import DEFAULT_PATIENCE
from dutiful.store.promotion import Promotion
from suite.builders import KIND, enqueue, enqueue_one, new_job, start_one, state

pytestmark = pytest.mark.parametrize("backend", ["postgres18", "postgres16"])
LATER = timedelta(hours=1)


@pytest.fixture
def url(backend: str, store: Store, request: pytest.FixtureRequest) -> str:
    clean: CleanDatabase = request.getfixturevalue(backend.replace("postgres", "clean"))
    return clean.url


@pytest.fixture
async def owner(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def maintain(owner: asyncpg.Connection, *kinds: str, **options: Any) -> tuple[int, int]:
    named = "".join(f", p_{name} => ${n}" for n, name in enumerate(options, start=2))
    statement = f"select promoted, rescued from dutiful.maintain_jobs($1{named})"
    row = await owner.fetchrow(statement, list(kinds or [KIND]), *options.values())
    return row["promoted"], row["rescued"]


async def records(owner: asyncpg.Connection, job_id: UUID) -> dict[str, Any]:
    """All that is stored of a job's end or return, without what differs between two jobs."""
    job = await owner.fetchrow(
        "select state, attempt, result, errors, finished_at, last_error from dutiful.jobs where id = $1", job_id
    )
    attempts = await owner.fetch(
        "select attempt, outcome, error, next_at, ended_at from dutiful.attempt where job_id = $1 order by id", job_id
    )
    dead = await owner.fetch("select errors, history, status from dutiful.dead_letter where job_id = $1", job_id)
    crashes = await owner.fetchval(
        "select coalesce((select crashes from dutiful.ready where job_id = $1),"
        " (select crashes from dutiful.finished where job_id = $1))",
        job_id,
    )
    return {
        "job": dict(job),
        "attempts": list(map(dict, attempts)),
        "dead": list(map(dict, dead)),
        "crashes": crashes,
    }


@pytest.mark.req("S6", "S27", "S80")
@pytest.mark.parametrize("crashes", [0, 1, 2, 7])
@pytest.mark.parametrize("cancel", [None, "", "not needed"])
async def test_a_rescue_is_decided_and_recorded_as_by_the_leader(
    store: Store, owner: asyncpg.Connection, crashes: int, cancel: str | None
) -> None:
    by_python, by_sql = await start_one(store), await start_one(store, kind="other")
    await owner.execute("update dutiful.lease set crashes = $1", crashes)
    if cancel is not None:
        for job_id in (by_python.job_id, by_sql.job_id):
            await owner.execute("select dutiful.cancel($1, nullif($2, ''), null)", job_id, cancel)
    await owner.execute("update dutiful.lease set expires_at = clock_timestamp()")
    at = await owner.fetchval("select clock_timestamp()")
    (held,) = [one for one in await store.claims.expired(9) if one.job_id == by_python.job_id]
    rescuer = Rescuer(_At(store, at), {})  # type: ignore[arg-type]

    assert await rescuer.rescue([held], expired_only=True) == 1
    assert await maintain(owner, "other", now=at) == (0, 1)

    assert await records(owner, by_sql.job_id) == await records(owner, by_python.job_id)
    assert await store.queries.check_places() == []


class _At:
    """A store whose settlements have a given time."""

    def __init__(self, store: Store, now: datetime) -> None:
        self.claims = self
        self._store, self._now = store, now

    async def settle(self, changes: Any, *, expired_only: bool) -> Any:
        return await self._store.claims.settle(changes, expired_only=expired_only, now=self._now)


async def test_only_expired_leases_of_the_kinds_named_are_rescued_and_only_if_asked(
    store: Store, owner: asyncpg.Connection
) -> None:
    jobs = [await start_one(store, kind=kind) for kind in (KIND, "other", KIND)]
    expired = [jobs[0].job_id, jobs[1].job_id]
    await owner.execute("update dutiful.lease set expires_at = clock_timestamp() + interval '1 day'")
    await owner.execute("update dutiful.lease set expires_at = clock_timestamp() where job_id = any ($1)", expired)

    assert await maintain(owner, rescue=False) == (0, 0)
    assert await maintain(owner, "unknown") == (0, 0)
    assert await maintain(owner) == (0, 1)
    assert await maintain(owner) == (0, 0)

    states = [await state(store, job.job_id) for job in jobs]
    assert states == [State.READY, State.RUNNING, State.RUNNING]


async def test_due_jobs_of_every_kind_become_ready_and_the_next_time_is_returned(
    store: Store, owner: asyncpg.Connection
) -> None:
    now = datetime.now(UTC)
    due = [new_job(kind=kind, run_at=now + LATER) for kind in (KIND, "other", KIND)]
    next_at = now + 2 * LATER
    await enqueue(store, *due, new_job(run_at=next_at), now=now)
    moment = now + LATER + timedelta(seconds=1)

    assert await maintain(owner) == (0, 0)
    assert await maintain(owner, limit=2, now=moment) == (2, 0)
    row = await owner.fetchrow("select * from dutiful.maintain_jobs(array['greet'], p_now => $1)", moment)
    assert (row["promoted"], row["rescued"], row["next_at"]) == (1, 0, next_at)
    assert {await state(store, job.id) for job in due} == {State.READY}
    assert await store.promotion.promote(10, now=moment) == Promotion(0, frozenset(), next_at)


async def test_jobs_that_waited_for_others_become_ready_without_a_worker_in_python(
    store: Store, owner: asyncpg.Connection
) -> None:
    enqueued = "select dutiful.enqueue($1, p_depends_on => $2::uuid[])"
    needed, doomed = await start_one(store), await start_one(store)
    waits, hopeless = [await owner.fetchval(enqueued, KIND, [one.job_id]) for one in (needed, doomed)]
    assert await maintain(owner, rescue=False, now=datetime.now(UTC)) == (0, 0)

    await owner.execute("select dutiful.complete_job($1, $2)", needed.job_id, needed.claim_id)
    await owner.execute("select dutiful.fail_job($1, $2, 'no', false)", doomed.job_id, doomed.claim_id)

    assert await maintain(owner, rescue=False, now=datetime.now(UTC)) == (1, 0)
    assert [await state(store, one) for one in (waits, hopeless)] == [State.READY, State.CANCELLED]
    assert await store.queries.check_places() == []


async def test_jobs_that_became_due_during_a_pause_become_ready_when_it_ends(
    store: Store, owner: asyncpg.Connection
) -> None:
    job_id = await enqueue_one(store, run_at=datetime.now(UTC) + LATER)
    await owner.execute("insert into dutiful.pause (scope, name, since) values ('kind', $1, now())", KIND)
    at = datetime.now(UTC) + 2 * LATER
    assert await maintain(owner, now=at) == (1, 0)
    assert await state(store, job_id) is State.BLOCKED

    await owner.execute("delete from dutiful.pause")

    assert await maintain(owner, now=at) == (1, 0)
    assert await state(store, job_id) is State.READY


async def test_gates_are_left_to_a_leader_that_lives_and_to_one_session_at_a_time(
    store: Store, owner: asyncpg.Connection, url: str
) -> None:
    needed = await start_one(store)
    await owner.execute("select dutiful.enqueue($1, p_depends_on => $2::uuid[])", KIND, [needed.job_id])
    await owner.execute("select dutiful.complete_job($1, $2)", needed.job_id, needed.claim_id)
    await store.leadership.survey(uuid4(), LATER)
    assert await maintain(owner, rescue=False, now=datetime.now(UTC)) == (0, 0)
    await owner.execute("delete from dutiful.leader")

    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            assert await maintain(other, rescue=False, now=datetime.now(UTC)) == (1, 0)
            assert await maintain(owner, rescue=False, now=datetime.now(UTC)) == (0, 0)  # without a wait
    finally:
        await other.close()


async def test_workers_are_woken_only_if_jobs_were_moved(store: Store, owner: asyncpg.Connection) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    await owner.add_listener("dutiful", lambda *got: heard.put_nowait(got[-1]))
    await maintain(owner)
    await owner.execute("notify dutiful, 'quiet'")
    assert await heard.get() == "quiet"

    await start_one(store)
    await owner.execute("update dutiful.lease set expires_at = clock_timestamp()")
    await maintain(owner)

    assert read_hint(await heard.get()) == EVERYWHERE


async def test_a_leader_that_holds_rescues_back_is_obeyed_while_it_lives(
    store: Store, owner: asyncpg.Connection
) -> None:
    await start_one(store)
    await owner.execute("update dutiful.lease set expires_at = clock_timestamp()")
    await store.leadership.survey(uuid4(), LATER, DEFAULT_PATIENCE)

    await owner.execute(
        "update dutiful.leader set next_by = clock_timestamp() + interval '1 minute', rescue_from = next_by"
    )
    assert await maintain(owner) == (0, 0)
    # One that is gone says nothing: without this, SQL workers alone would never rescue.
    await owner.execute("update dutiful.leader set next_by = clock_timestamp()")
    assert await maintain(owner) == (0, 1)


async def test_a_call_that_hung_in_an_outage_rescues_nothing(store: Store, owner: asyncpg.Connection) -> None:
    """It was sent soon after the one before, and is run much later, when the leases of workers that live are over."""
    await start_one(store)
    seen = await owner.fetchval("select seen_at from dutiful.maintain_jobs(array['greet'], false)")
    await owner.execute("update dutiful.lease set expires_at = clock_timestamp()")
    hung = seen - timedelta(seconds=11)
    assert await maintain(owner, seen=hung) == (0, 0)
    assert await maintain(owner, seen=hung, within=None) == (0, 0)
    assert await maintain(owner, seen=hung, within=LATER) == (0, 1)


async def test_two_sessions_at_once_rescue_and_promote_each_job_once(
    store: Store, owner: asyncpg.Connection, backend: str, request: pytest.FixtureRequest
) -> None:
    await start_one(store)
    await enqueue_one(store, run_at=datetime.now(UTC) + LATER, now=datetime.now(UTC))
    await owner.execute("update dutiful.lease set expires_at = clock_timestamp()")
    await owner.execute("update dutiful.scheduled set run_at = clock_timestamp()")
    clean: CleanDatabase = request.getfixturevalue(backend.replace("postgres", "clean"))
    other = await asyncpg.connect(clean.url)
    try:
        async with owner.transaction():
            assert await maintain(owner) == (1, 1)
            assert await maintain(other) == (0, 0)  # it skips what the open transaction has locked
        assert await maintain(other) == (0, 0)
    finally:
        await other.close()
    assert await store.queries.check_places() == []


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": None}])
async def test_a_call_without_a_limit_is_refused(
    store: Store, owner: asyncpg.Connection, wrong: dict[str, Any]
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="1 or more"):
        await maintain(owner, **wrong)
