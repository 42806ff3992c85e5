"""Whole trees by an operator: shown, cancelled, and run again with their edges and results."""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from operating import trail
from running_workers import running

from dutiful import PREVIOUS, Context, Dutiful, Retry, State, chain, group
from dutiful.core.correlation_tree import Relation
from dutiful.core.errors import IllegalTransition, JobCancelled, JobNotFound
from dutiful.core.outcome import Failed
from dutiful.core.principal import Principal
from dutiful.maintenance.dependents import release_all
from dutiful.operator import trace
from suite.builders import OOPS, claim, complete, new_job, settle

pytestmark = pytest.mark.req("L101")
ONCE = Retry(max_attempts=1)


class Shop:
    """A chain extract → load → report, of which `load` can be broken."""

    def __init__(self, app: Dutiful) -> None:
        self.app = app
        self.broken = True
        self.extracted = 0

        @app.job
        async def extract() -> int:
            self.extracted += 1
            return 7

        @app.job(retry=ONCE)
        async def load(rows: int) -> int:
            if self.broken:
                raise ValueError("no disk")
            return rows * 2

        @app.job
        async def report(ctx: Context, loaded: int) -> str:
            return f"{loaded} after {[parent.kind for parent in await ctx.parents()]}"

        self.flow = chain(extract.call(), load.call(PREVIOUS), report.call(PREVIOUS))
        self.load, self.report = load, report


async def test_what_failed_and_was_cancelled_because_of_it_is_run_again_with_its_edges(app: Dutiful) -> None:
    shop = Shop(app)
    async with running(app):
        flow = await shop.flow.enqueue()
        with pytest.raises(JobCancelled):
            await flow.result(30)
        assert [(await job.record()).state for job in flow.jobs] == ["completed", "failed", "cancelled"]
        shop.broken = False
        operator = await app.operator("ada")
        retried = await operator.trees.retry(flow.jobs[1].public_id, "the disk is there")
        assert [*retried.jobs] == [flow.jobs[1].id, flow.jobs[2].id]
        new = retried.jobs[flow.jobs[2].id]
        assert await (await app.client()).result(new, "30s") == "14 after ['load']"

    assert shop.extracted == 1
    record = await app.find(new)
    assert record is not None
    assert (record.retry_of, record.correlation_id) == (flow.jobs[2].id, flow.correlation_id)
    letter = await operator.dead_letters.get(flow.jobs[1].id)
    assert letter.new_job_id == retried.jobs[flow.jobs[1].id]
    with pytest.raises(IllegalTransition, match=r"nothing of .* is to be run again"):
        await operator.trees.retry(flow.jobs[0].public_id)
    assert ("job.retry_tree", "succeeded") in [
        (event.action, event.outcome) for event in await trail((await app.client()).store)
    ]


async def test_a_tree_that_was_cancelled_by_hand_is_run_again_only_if_asked(app: Dutiful) -> None:
    shop = Shop(app)
    flow = await shop.flow.enqueue()
    operator = await app.operator("ada")

    assert await operator.trees.cancel(flow.correlation_id, "wrong day") == 3
    assert (await operator.trees.progress(flow.correlation_id)).states == {"cancelled": 3}
    with pytest.raises(IllegalTransition, match="--cancelled"):
        await operator.trees.retry(flow.correlation_id)
    shop.broken = False
    retried = await operator.trees.retry(flow.correlation_id, cancelled=True)
    assert len(retried.jobs) == 3
    async with running(app):
        assert await (await app.client()).result(retried.jobs[flow.jobs[2].id], "30s") == "14 after ['load']"


async def test_a_trace_shows_the_edges_and_states_of_a_graph(app: Dutiful) -> None:
    @app.job
    async def part(n: int) -> int:
        return n

    @app.job
    async def whole(parts: list[int | None]) -> int:
        return sum(part or 0 for part in parts)

    flow = await group([part.call(1), part.call(2)], then=whole.call(PREVIOUS)).enqueue()
    operator = await app.operator("ada")

    tree = await operator.trace.find(flow.last.public_id)

    first, second, last = tree.members
    assert (first.needs, second.needs) == ((), ())
    assert [(need.id, need.on_failure) for need in last.needs] == [(first.id, "run"), (second.id, "run")]
    assert (last.under, last.relation, last.depth, last.state) == (second.id, Relation.AFTER, 1, State.BLOCKED)
    why = await operator.jobs.explain(last.id)
    assert first.id != second.id
    assert all(job.public_id in why.sentence for job in flow.jobs[:2])


async def test_a_trace_of_a_graph_with_very_many_edges_shows_the_newest_of_each_job(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "NEEDS", 3)
    monkeypatch.setattr(trace, "MOST_NEEDS", 12)
    store, operator = (await app.client()).store, await app.operator("ada")
    needs = [new_job() for _ in range(4)]
    await store.jobs.insert(needs)

    async def shown() -> list[list[UUID]]:
        return [[need.id for need in member.needs] for member in (await operator.trace.find("dense")).members]

    for jobs, each in ((4, 3), (2, 2)):  # twelve edges are shown, eighteen are not
        await store.jobs.insert(
            [new_job(correlation_id="dense", depends_on=tuple(job.id for job in needs)) for _ in range(jobs)]
        )
        assert {tuple(ids) for ids in await shown()} == {tuple(job.id for job in needs[-each:])}
        assert {member.needs_total for member in (await operator.trace.find("dense")).members} == {4}


async def test_a_trace_of_a_large_tree_shows_its_root_and_what_failed_with_its_ancestors(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MOST": 10, "FAILED": 3, "OLDEST": 2, "ANCESTORS": 4}.items():
        monkeypatch.setattr(trace, name, value)
    store, operator = (await app.client()).store, await app.operator("ada")
    root = new_job()
    chain = [root]
    for _ in range(39):
        chain.append(new_job(depends_on=(chain[-1].id,), correlation_id=str(root.id)))
    await store.jobs.insert(chain)
    for job in chain[:20]:
        [held] = await claim(store)
        await (complete(store, held) if job is not chain[19] else settle(store, held, Failed(OOPS, final=True)))
        await release_all(store.dependents, [job.id])

    tree = await operator.trace.find(str(root.id))

    ids = [chain[n].id for n in (0, 1, 15, 16, 17, 18, 19)]
    assert tree.cut
    assert [one.id for one in tree.members][:7] == ids
    assert [one.id for one in tree.members][7:] == [job.id for job in chain[-7:]]
    assert [one.id for one in tree.tree()][:5] == ids[2:], "the branch that failed comes first"
    assert (await operator.trees.progress(str(root.id))).states == {"cancelled": 20, "completed": 19, "failed": 1}


async def test_a_tree_of_another_tenant_is_not_shown_by_its_failures(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST", 2)
    store = (await app.client()).store
    await store.jobs.insert([theirs := new_job(tenant="zeta", correlation_id="c")])
    [held] = await claim(store)
    await settle(store, held, Failed(OOPS, final=True))
    ours = [new_job(tenant="acme", correlation_id="c", parent_id=theirs.id) for _ in range(4)]
    await store.jobs.insert(ours)
    operator = await app.operator(Principal(name="ada", tenant="acme"))

    assert {one.id for one in (await operator.trace.find("c")).members} == {job.id for job in ours}


async def test_a_tree_is_run_again_with_few_reads(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    store, operator = (await app.client()).store, await app.operator("ada")
    failed = [new_job(correlation_id="wide") for _ in range(40)]
    await store.jobs.insert(failed)
    await store.jobs.insert([new_job(correlation_id="wide", depends_on=(job.id,)) for job in failed])
    for held in await claim(store, limit=40):
        await settle(store, held, Failed(OOPS, final=True))
    await release_all(store.dependents, [job.id for job in failed])
    calls: Counter[str] = Counter()
    for subject in (store.queries, store.dead_letters, store.dependents, store.jobs):
        _count(subject, calls, monkeypatch)

    assert len((await operator.trees.retry("wide")).jobs) == 80

    assert sum(calls.values()) <= 20, calls


def _count(subject: Any, calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in dir(subject):
        call = getattr(subject, name)
        if not name.startswith("_") and callable(call):

            def counted(*args: Any, _name: str = name, _call: Any = call, **options: Any) -> Any:
                calls[_name] += 1
                return _call(*args, **options)

            monkeypatch.setattr(subject, name, counted, raising=False)


async def test_a_tenants_operator_acts_on_its_own_jobs_of_a_tree_only(app: Dutiful) -> None:
    @app.job
    async def one() -> None: ...

    theirs = await one.options(tenant="zeta", correlation_id="shared").enqueue()
    ours = await one.options(tenant="acme", correlation_id="shared").enqueue()
    operator = await app.operator(Principal(name="ada", tenant="acme"))

    assert (await operator.trees.progress("shared")).total == 1
    assert await operator.trees.cancel("shared") == 1
    assert [(await job.record()).state for job in (ours, theirs)] == ["cancelled", "ready"]
    with pytest.raises(JobNotFound):
        await operator.trees.progress("unknown")
