"""Fair shares: who has jobs where, and claims of so many of each tenant."""

from types import SimpleNamespace
from typing import Any

from dutiful.core.job import Claim
from dutiful.declare.lane import LaneSettings
from dutiful.settings import Settings
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.shares import WINDOW, Look, LookRequest, ShareRecord, ShareRequest, Take
from dutiful.worker.lanes.fetcher import FetchCursors
from dutiful.worker.lanes.shares import FairBuffer, FairSource
from suite.builders import ADA, DEFAULT, KIND, LEASE, T0, at, claim, crash, enqueue, new_job, pause

FIRST = 0  # a seq before all


async def look(store: Store, **fields: Any) -> Look:
    ask = {"lane": "general", "queues": ["*"], "kinds": [KIND], "levels": [DEFAULT], **fields}
    return await store.shares.look(LookRequest(**ask))


async def take(store: Store, *takes: Take, lane: str = "general", kinds: tuple[str, ...] = (KIND,)) -> list[Claim]:
    return await store.shares.claim(ShareRequest(ADA, lane, takes, kinds, LEASE), now=T0)


def places(look: Look) -> list[tuple[str | None, str, int]]:
    """The levels in which there is a job to claim."""
    return [(one.tenant, one.queue, one.priority) for one in look.levels if one.seq is not None]


class ShareSuite:
    async def test_a_look_finds_each_queue_level_of_each_tenant_with_its_first_job(self, store: Store) -> None:
        acme = [new_job(tenant="acme", priority=priority) for priority in (100, 100, 50)]
        zeta = new_job(tenant="zeta", queue="mail")
        await enqueue(store, *acme)
        await enqueue(store, zeta, now=at(1))

        found = await look(store)

        assert places(found) == [("acme", "default", 50), ("acme", "default", 100), ("zeta", "mail", 100)]
        assert found.next is None and not found.suspects
        (of_zeta,) = [one for one in found.levels if one.tenant == "zeta"]
        (claimed,) = await take(store, Take("zeta", "mail", 100, of_zeta.seq or 0, 5))
        assert claimed.job_id == zeta.id and claimed.seq == of_zeta.seq

    async def test_a_look_goes_on_where_the_last_one_ended(self, store: Store) -> None:
        await enqueue(store, *(new_job(tenant=f"t{n}") for n in range(5) for _ in range(2)))

        first = await look(store, steps=2)
        second = await look(store, steps=2, after=first.next)
        third = await look(store, steps=2, after=second.next)

        assert first.next == ("t1", "default", 100)
        assert [one.tenant for part in (first, second, third) for one in part.levels] == ["t0", "t1", "t2", "t3", "t4"]
        assert third.next is None

    async def test_a_tenant_with_many_queue_levels_does_not_keep_a_look_from_the_others(self, store: Store) -> None:
        await enqueue(store, *(new_job(tenant="acme", queue=f"q{n}", priority=p) for n in range(3) for p in (1, 2)))
        await enqueue(store, *(new_job(tenant=tenant) for tenant in ("moon", "zeta")))

        seen: list[list[tuple[str | None, str, int]]] = []
        within: dict[str, tuple[str, int]] = {}
        for _ in range(4):
            found = await look(store, each=2, within=within)
            within = found.unfinished(2)
            seen.append([one for one in places(found) if one[0] == "acme"])
            assert [one.tenant for one in found.levels][-2:] == ["moon", "zeta"]

        in_turn = [[("acme", f"q{n}", p) for p in (1, 2)] for n in range(3)]
        assert seen == [*in_turn, in_turn[0]], "each look sees others, and after the last the first again"

    async def test_a_look_leaves_out_what_the_lane_does_not_serve(self, store: Store) -> None:
        await enqueue(store, new_job(tenant="acme"), new_job(tenant="acme", queue="mail"))
        await enqueue(store, new_job(tenant="zeta", kind="wave"), new_job(tenant="moon", queue="slow"))
        await pause(store, PauseScope.QUEUE, "slow")

        assert places(await look(store, queues=["mail"])) == [("acme", "mail", 100)]
        assert places(await look(store)) == [("acme", "default", 100), ("acme", "mail", 100)]
        assert places(await look(store, kinds=["wave"])) == [("zeta", "default", 100)]
        assert places(await look(store, kinds=[KIND, "wave"], tenants=["zeta"])) == [("zeta", "default", 100)]
        await pause(store, PauseScope.LANE, "general")
        assert places(await look(store)) == []
        assert places(await look(store, lane="other", queues=["mail"])) == [("acme", "mail", 100)]

    async def test_so_many_jobs_of_each_tenant_are_claimed_in_the_order_asked_for(self, store: Store) -> None:
        acme, zeta = ([new_job(tenant=tenant) for _ in range(5)] for tenant in ("acme", "zeta"))
        await enqueue(store, *acme, *zeta)

        claims = await take(
            store, Take("zeta", "default", 100, FIRST, 2), Take("acme", "default", 100, FIRST, 3),
            Take("moon", "default", 100, FIRST, 3),
        )  # fmt: skip

        assert [one.job_id for one in claims] == [job.id for job in (*zeta[:2], *acme[:3])]
        assert {one.tenant for one in claims} == {"acme", "zeta"}
        assert len({one.claim_id for one in claims}) == 5
        (again, *_) = await take(store, Take("acme", "default", 100, claims[-1].seq, 9))
        assert again.job_id == acme[3].id

    async def test_jobs_before_the_seq_asked_for_or_of_other_kinds_are_left(self, store: Store) -> None:
        jobs = [new_job(tenant="acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await enqueue(store, new_job(tenant="acme", kind="wave"))
        (level,) = (await look(store)).levels
        assert level.seq is not None

        claims = await take(store, Take("acme", "default", 100, level.seq + 1, 9))

        assert [one.job_id for one in claims] == [job.id for job in jobs[1:]]

    async def test_what_is_paused_is_not_claimed(self, store: Store) -> None:
        await enqueue(store, new_job(tenant="acme"), new_job(tenant="acme", queue="mail"), new_job())
        everything = [Take(tenant, "default", 100, FIRST, 5) for tenant in ("acme", None)]
        await pause(store, PauseScope.QUEUE, "default")
        assert await take(store, *everything) == []
        (mail,) = await take(store, Take("acme", "mail", 100, FIRST, 5))
        assert mail.queue == "mail"
        await store.control.resume(PauseScope.QUEUE, "default")
        await pause(store, PauseScope.LANE, "*")
        assert await take(store, *everything) == []
        assert len(await take(store, *everything, lane="general")) == 0

    async def test_jobs_without_a_tenant_are_found_at_the_front_of_their_queue_level(self, store: Store) -> None:
        first, last = new_job(), new_job()
        await enqueue(store, first, *(new_job(tenant="acme") for _ in range(WINDOW)), last)

        found = await look(store)
        assert places(found) == [("acme", "default", 100), (None, "default", 100)]
        assert places(await look(store, tenants=["acme"])) == [("acme", "default", 100)]
        (claimed,) = await take(store, Take(None, "default", 100, FIRST, 5))
        assert claimed.job_id == first.id
        assert places(await look(store)) == [("acme", "default", 100)], "the next one is behind too many others"
        await take(store, Take("acme", "default", 100, FIRST, 1))
        assert places(await look(store)) == [("acme", "default", 100), (None, "default", 100)]
        (claimed,) = await take(store, Take(None, "default", 100, FIRST, 5))
        assert claimed.job_id == last.id

    async def test_a_job_without_a_tenant_is_found_by_looks_that_go_on_behind_jobs_of_others(
        self, store: Store
    ) -> None:
        await enqueue(store, *(new_job(tenant="acme", kind="wave") for _ in range(2 * WINDOW)))
        hidden, last = new_job(kind="paused"), new_job()
        await enqueue(store, hidden, last, now=at(1))
        await pause(store, PauseScope.KIND, "paused")

        found = await look(store)
        for _ in range(2):
            assert places(found) == [] and found.walk
            found = await look(store, kinds=[KIND, "paused"], walk=found.walk)

        assert places(found) == [(None, "default", 100)] and not found.walk
        (level,) = [one for one in found.levels if one.tenant is None]
        assert level.job_id == last.id and level.seq is not None
        (claimed,) = await take(store, Take(None, "default", 100, level.seq, 5, level.job_id))
        assert claimed.job_id == last.id
        end = await look(store, walk={("default", 100): (level.seq, level.job_id)})
        assert places(end) == [] and not end.walk, "the next look begins at the front again"

    async def test_a_fair_lane_claims_a_job_without_a_tenant_behind_many_that_it_does_not_serve(
        self, store: Store
    ) -> None:
        await enqueue(store, *(new_job(tenant="acme", kind="wave") for _ in range(2 * WINDOW + 1)))
        jobs = [new_job(), new_job()]
        await enqueue(store, *jobs, now=at(1))
        lane = LaneSettings("general", 2, fair=True)
        config: Any = SimpleNamespace(
            store=store, worker_id=ADA, kinds={KIND: None}, inbox=None, settings=Settings(lanes=(lane,))
        )
        cursors = FetchCursors()
        cursors.add([(DEFAULT.queue, DEFAULT.priority)])
        source = FairSource(config, lane, cursors, FairBuffer(2, 1))

        claims = [*await source.claim(1, 0), *await source.claim(1, 0)]

        assert [one.job_id for one in claims] == [job.id for job in jobs]
        assert await source.claim(1, 0) == [] and not source.more

    async def test_a_suspect_is_noted_and_left_to_be_claimed_alone(self, store: Store) -> None:
        await enqueue(store, new_job(tenant="acme"))
        await claim(store)
        now = await crash(store)

        found = await look(store)

        assert found.suspects and places(found) == []
        assert await take(store, Take("acme", "default", 100, FIRST, 5)) == []
        (suspect,) = await claim(store, now=now, limit=0, suspects=1)
        assert suspect.crashes == 1

    async def test_the_weight_of_a_tenant_is_one_until_it_is_set(self, store: Store) -> None:
        await enqueue(store, *(new_job(tenant=tenant) for tenant in ("acme", "zeta")))
        await store.shares.put("acme", 3)
        await store.shares.put("moon", 7)
        await store.shares.put("moon", 8)

        assert {one.tenant: one.weight for one in (await look(store)).levels} == {"acme": 3, "zeta": 1}
        await take(store, Take("zeta", "default", 100, FIRST, 5))
        assert await store.shares.all() == [ShareRecord("zeta", 1, 1), ShareRecord("acme", 3), ShareRecord("moon", 8)]
        await store.shares.put("acme", None)
        assert [one.tenant for one in await store.shares.all()] == ["zeta", "moon"]
