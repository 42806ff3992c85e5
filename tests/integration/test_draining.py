"""A drain: what is paused finishes what runs and begins nothing, and only then is it called safe."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from operating import add_silent_worker, now, of_acme, operator, trail
from running_workers import eventually, final, state, working

from dutiful import Dutiful, State
from dutiful.core.errors import IllegalTransition, NotAllowed, UnknownKind, UsageError
from dutiful.operator import fleet
from dutiful.operator.drain import EVERYTHING, Drain, DrainTarget
from dutiful.store import Store
from dutiful.store.control import Pause, PauseScope
from dutiful.testing import Clock, ClockedStore
from suite.builders import complete, start_one

FAR = timedelta(minutes=10)
BEAT = "1s"  # a worker counts as alive for three of them: so long may a slow machine keep it from the next


pytestmark = pytest.mark.usefixtures("soon_settled")


@pytest.mark.req("L93", "L94")
async def test_a_drain_waits_for_what_runs_and_what_comes_waits_for_a_resume(app: Dutiful) -> None:
    app.configure(heartbeat=BEAT)
    begun, go = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    @app.job
    async def email(name: str) -> None:
        begun.set()
        await go.wait()
        done.append(name)

    @app.job
    async def other() -> None:
        done.append("other")

    async with working(app):
        first = await email.enqueue(name="first")
        await asyncio.wait_for(begun.wait(), 60)
        ada = await app.operator("ada")

        drain = await ada.fleet.drain(kinds=["email"], reason="mail server moves")

        assert (drain.running, drain.safe, [p.name for p in drain.pauses]) == (1, False, ["email"])
        (blocker,) = drain.blockers
        assert (blocker.job_id, blocker.kind, blocker.alive) == (first.id, "email", True)
        assert "dutiful jobs cancel" in blocker.remedy
        second = await email.enqueue(name="second")
        await final(app, await other.enqueue())
        assert not (await ada.fleet.drain_status()).safe

        looks: list[Drain] = []

        def look(seen: Drain) -> None:
            looks.append(seen)
            go.set()  # what runs ends when it has been waited for

        drained = await ada.fleet.wait_drained(drain, FAR, look)

        assert drained.safe and drained.running == 0 and looks[0].running == 1
        assert done == ["other", "first"]
        assert await state(app, second) is State.BLOCKED
        await ada.fleet.resume(PauseScope.KIND, "email")
        await final(app, second)
    assert done == ["other", "first", "second"]
    asked, reported = await trail((await app.client()).store, action="fleet.drain")
    assert (asked.target, asked.reason) == ("kind email", "mail server moves")
    assert reported.after == {"paused": ["kind email"], "running": 1}


@pytest.mark.req("L93", "L94")
@pytest.mark.parametrize("everything", [False, True])
async def test_a_lane_is_drained_when_its_workers_say_that_it_is_empty(app: Dutiful, everything: bool) -> None:
    app.configure(heartbeat=BEAT)
    begun, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def analysis() -> None:
        begun.set()
        await go.wait()

    @app.job(queue="fast")
    async def email() -> None: ...

    async with working(app):
        slow = await analysis.enqueue()
        await asyncio.wait_for(begun.wait(), 60)
        ada = await app.operator("ada")
        drain = await ada.fleet.drain(lanes=[] if everything else ["general"], everything=everything)
        assert not drain.safe

        async def waited_for() -> bool:
            state = await ada.fleet.drain_status(everything=everything)
            return [one.job_id for one in state.blockers] == [slow.id] and not state.unconfirmed

        await eventually(waited_for)
        prompt = await email.enqueue()
        if not everything:
            await final(app, prompt)  # the other lane goes on
        go.set()
        assert (await ada.fleet.wait_drained(drain, FAR, lambda _: None)).safe
        for pause in drain.pauses:
            await ada.fleet.resume(pause.scope, pause.name)
        await final(app, prompt)


@pytest.mark.req("L93")
async def test_a_lane_whose_worker_has_not_confirmed_the_pause_is_not_called_safe(app: Dutiful) -> None:
    app.configure(heartbeat="1h")
    begun, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def analysis() -> None:
        begun.set()
        await go.wait()

    async with working(app):
        await analysis.enqueue()
        await asyncio.wait_for(begun.wait(), 60)
        drain = await (await app.operator("ada")).fleet.drain(lanes=["general"])
        assert (drain.running, len(drain.unconfirmed), drain.safe) == (0, 1, False)
        go.set()


@pytest.mark.req("L93")
async def test_a_drain_ends_and_is_not_safe_when_its_target_is_resumed(store: Store) -> None:
    claim = await start_one(store, kind="email", now=now())
    ada = operator(store)
    assert not (await ada.fleet.drain_status()).safe, "nothing is paused, so nothing is drained"
    drain = await ada.fleet.drain(kinds=["email"], queues=[claim.queue])
    assert not drain.not_paused

    def resumes(seen: Drain) -> None:
        assert seen.not_paused == ["kind email"]

    await operator(store, "bob").fleet.resume("kind", "email")
    ended = await ada.fleet.wait_drained(drain, FAR, resumes)

    assert (ended.safe, ended.running, [p.name for p in ended.pauses]) == (False, 1, [claim.queue])
    await store.control.resume(PauseScope.QUEUE, claim.queue)
    await complete(store, claim, now=now())
    ended = await ada.fleet.drain_status(drain.targets)
    assert (ended.safe, ended.running, len(ended.not_paused)) == (False, 0, 2), "nothing runs now, but it can start"
    assert not (await ada.fleet.drain_status()).safe and not (await ada.fleet.drain_status(everything=True)).safe


@pytest.mark.req("L93")
async def test_a_claim_that_is_answered_long_after_the_pause_keeps_a_drain_from_being_safe(pg18_url: str) -> None:
    app = Dutiful(pg18_url)
    app.configure(heartbeat="1h")
    done: list[str] = []

    @app.job
    async def email() -> None:
        done.append("email")

    async with working(app, services=False) as worker:
        ada = await app.operator("ada")
        other = await asyncpg.connect(pg18_url)

        async def asks() -> bool:
            waits = "relation = 'dutiful.lease'::regclass and not granted"
            return bool(await other.fetchval(f"select count(*) from pg_locks where {waits}"))

        async with other.transaction():
            await other.execute("lock table dutiful.lease in exclusive mode")
            await email.enqueue()
            await eventually(asks)  # by now it has seen that nothing is paused
            await ada.fleet.drain(kinds=["email"], queues=["default"], lanes=["general"])
            drain = await ada.fleet.drain(everything=True)
            await worker._parts.heartbeat.beat()  # now: by the clock it could come before the drain or after the lock
            for part in (EVERYTHING, *(DrainTarget(pause.scope, pause.name) for pause in await ada.fleet.pauses())):
                seen = await ada.fleet.drain_status([part])
                assert (seen.safe, seen.not_paused, len(seen.unconfirmed)) == (False, [], 1), part
            assert not done

        async def safe() -> bool:
            await worker._parts.heartbeat.beat()
            return (await ada.fleet.drain_status(drain.targets)).safe

        await eventually(safe)
        assert done == ["email"]
        await other.close()
    app.close_sync()


@pytest.mark.req("L93")
async def test_a_worker_that_has_confirmed_one_pause_has_not_confirmed_an_older_one(app: Dutiful) -> None:
    app.configure(heartbeat="1h")
    begun, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def email() -> None:
        begun.set()
        await go.wait()

    @app.job
    async def other() -> None: ...

    async with working(app) as worker:
        ada = await app.operator("ada")
        await ada.fleet.pause("kind", "other")
        await worker._parts.heartbeat.beat()  # this one and no other, so that it confirms one pause only
        await email.enqueue()
        await asyncio.wait_for(begun.wait(), 60)
        earlier = now() - timedelta(minutes=1)  # as one whose commit took long
        await (await app.client()).store.control.pause(Pause(PauseScope.LANE, "general", earlier), now=earlier)
        assert not (await ada.fleet.drain_status([DrainTarget(PauseScope.LANE, "general")])).safe
        go.set()


@pytest.mark.req("L93", "L94")
async def test_a_drain_of_everything_holds_for_lanes_that_come_later(app: Dutiful) -> None:
    app.configure(lanes="of-tomorrow=2:*", heartbeat=BEAT)

    @app.job
    async def email() -> None: ...

    ada = await app.operator("ada")
    drain = await ada.fleet.drain(everything=True)
    assert (await ada.fleet.wait_drained(drain, FAR, lambda _: None)).safe
    async with working(app):
        job = await email.enqueue()

        async def confirmed() -> bool:
            workers = await ada.fleet.workers()
            return [len(lane.pauses_seen) for worker in workers for lane in worker.lanes.values()] == [1]

        await eventually(confirmed)
        assert (await ada.jobs.explain(job.id)).sentence.startswith("waits because every lane was paused")
        assert await state(app, job) is State.READY
        await ada.fleet.resume("lane", "*")
        await final(app, job)


@pytest.mark.req("L93")
async def test_a_queue_that_any_lane_would_serve_can_be_drained_before_it_has_jobs(store: Store) -> None:
    ada = operator(store)
    with pytest.raises(UsageError, match=r"there is no queue 'mail': .* there are: default"):
        await ada.fleet.drain(queues=["mail"])
    await add_silent_worker(store, since=timedelta(0))

    drain = await ada.fleet.drain(queues=["mail", "default"])

    assert [str(part) for part in drain.unknown] == ["queue mail"]
    assert {pause.name for pause in drain.pauses} == {"mail", "default"}


@pytest.mark.req("L93")
async def test_a_drain_knows_which_pauses_are_its_own(store: Store) -> None:
    claim = await start_one(store, kind="email", now=now())
    await operator(store, "bob").fleet.pause("kind", "email", "data is corrupt")

    drain = await operator(store).fleet.drain(kinds=["email"], queues=[claim.queue])

    assert [str(part) for part in drain.newly_paused] == [f"queue {claim.queue}"]
    assert len(drain.pauses) == 2


@pytest.mark.req("L93", "L95")
async def test_it_is_the_clock_of_the_store_that_decides(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "IN_FLIGHT", timedelta(seconds=1))
    clock = Clock(now() - timedelta(days=1))
    yesterday = operator(ClockedStore(store, clock))
    claim = await start_one(store, kind="email", now=clock.now() - timedelta(minutes=30))

    assert await yesterday.jobs.stuck(timedelta(hours=1)) == []
    with pytest.raises(IllegalTransition, match="has not been running for 1h"):
        await yesterday.jobs.release(claim.job_id, older_than=timedelta(hours=1))
    await complete(store, claim, now=clock.now())
    assert not (await yesterday.fleet.drain(kinds=["email"])).safe, "a claim may be under way"
    clock.advance("1s")
    assert (await yesterday.fleet.drain_status()).safe


@pytest.mark.req("L93")
async def test_a_drain_that_cannot_end_names_what_holds_it_up(store: Store) -> None:
    claim = await start_one(store, kind="email", now=now())  # by an unknown worker
    ada = operator(store)

    drain = await ada.fleet.drain(queues=[claim.queue])
    late = await ada.fleet.wait_drained(drain, timedelta(0), lambda _: None)

    assert not late.safe and late.running == 1
    (blocker,) = late.blockers
    assert (blocker.job_id, blocker.alive) == (claim.job_id, False)
    assert "its worker is gone" in blocker.remedy and "dutiful jobs release" in blocker.remedy
    assert await store.control.pauses(), "it stays paused"
    await ada.jobs.release(claim.job_id)
    assert (await ada.fleet.drain_status()).running == 0


@pytest.mark.req("L93")
async def test_a_drain_of_nothing_that_is_known_is_refused_and_pauses_nothing(store: Store) -> None:
    await start_one(store, kind="email", now=now())
    ada = operator(store)

    with pytest.raises(UnknownKind, match="there is no kind 'emial'"):
        await ada.fleet.drain(kinds=["email", "emial"])
    with pytest.raises(UsageError, match="there is no lane 'fsat'"):
        await ada.fleet.drain(lanes=["fsat"])
    with pytest.raises(UsageError, match="say what to drain"):
        await ada.fleet.drain()
    with pytest.raises(UsageError, match="'lnae' cannot be paused: it is a queue, a kind, a lane that can"):
        await ada.fleet.pause("lnae", "general")
    with pytest.raises(UsageError, match="would stop nothing; for everything, pause the lane '\\*'"):
        await ada.fleet.pause("queue", "*")
    with pytest.raises(UsageError, match="and not both"):
        await ada.fleet.drain(kinds=["email"], everything=True)
    with pytest.raises(NotAllowed):
        await of_acme(store).fleet.drain(kinds=["email"])
    with pytest.raises(NotAllowed):
        await of_acme(store).fleet.drain_status()
    assert await store.control.pauses() == []
    assert {event.outcome for event in await trail(store, action="fleet.drain")} == {"refused"}
