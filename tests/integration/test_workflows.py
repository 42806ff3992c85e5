"""Workflows with real workers: results are passed, failures are counted, children are waited for."""

import asyncio
from typing import Any

import pytest
from running_workers import running

from dutiful import PREVIOUS, Context, Dutiful, JobFailed, Retry, State, UsageError, chain, group
from dutiful.core.errors import JobCancelled, PayloadInvalid
from dutiful.maintenance import runner

pytestmark = pytest.mark.req("L101")
ONCE = Retry(max_attempts=1)


@pytest.fixture
def leader_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader looks once, so that only ends of jobs release others."""
    monkeypatch.setattr(runner, "LEADER_POLL", 3600.0)


async def test_a_chain_passes_each_result_to_the_next(app: Dutiful, leader_sleeps: None) -> None:
    @app.job
    async def extract(day: int) -> list[int]:
        return [day, day + 1]

    @app.job
    def add(rows: list[int], to: int = 10) -> int:
        return sum(rows) + to

    @app.job
    async def say(total: int, by: str) -> str:
        return f"{by}: {total}"

    async with running(app):
        flow = await chain(extract.call(1), add.call(PREVIOUS), say.call(total=PREVIOUS, by="ada")).enqueue()

        assert await flow.result(30) == "ada: 13"
        progress = await flow.progress()
    assert (progress.states, progress.percent, progress.done) == ({"completed": 3}, 100, True)
    assert progress.created_at is not None and progress.finished_at is not None
    records = [await job.record() for job in flow.jobs]
    assert {record.correlation_id for record in records} == {str(flow.jobs[0].id)} == {flow.correlation_id}
    assert [record.started_at for record in records] == sorted(record.started_at or 0 for record in records)


async def test_a_group_calls_back_when_all_are_done_and_counts_failures(app: Dutiful, leader_sleeps: None) -> None:
    @app.job(retry=ONCE)
    async def resize(image: int) -> int:
        if image % 3 == 0:
            raise ValueError("too large")
        return image * 10

    @app.job
    async def report(ctx: Context, sizes: list[int | None]) -> dict[str, Any]:
        parents = await ctx.parents()
        return {
            "sizes": sizes,
            "failed": len(parents.failed),
            "completed": len(parents.completed),
            "errors": sorted({parent.error["message"] for parent in parents.failed if parent.error}),
        }

    async with running(app):
        flow = await group([resize.call(n) for n in range(1, 7)], then=report.call(PREVIOUS)).enqueue()
        found = await flow.result(30)

    assert found == {"sizes": [10, 20, None, 40, 50, None], "failed": 2, "completed": 4, "errors": ["too large"]}


async def test_a_blocking_callback_sees_its_parents_too(app: Dutiful) -> None:
    @app.job
    def one() -> int:
        return 1

    @app.job
    def count(ctx: Context) -> int:
        return sum(parent.result for parent in ctx.parents_sync())

    async with running(app):
        assert await (await group([one.call(), one.call()], then=count.call()).enqueue()).result(30) == 2


@pytest.mark.parametrize(("policy", "becomes"), [("cancel", "cancelled"), ("fail", "failed"), ("run", "completed")])
async def test_each_edge_of_a_graph_has_its_policy(
    app: Dutiful, leader_sleeps: None, policy: str, becomes: str
) -> None:
    @app.job(retry=ONCE)
    async def fails() -> int:
        raise ValueError("no")

    @app.job
    async def works(n: int | None = None) -> int:
        return 7 if n is None else n

    flow = app.workflow("nightly")
    bad, good = flow.add(fails.call()), flow.add(works.call(1))
    child = flow.add(works.call(bad.result), after=[good], on_failure="cancel")
    child.after(bad, on_failure=policy)
    grandchild = flow.add(works.call(child.result), on_failure="run")

    async with running(app):
        enqueued = await flow.enqueue()
        assert await enqueued[grandchild].result(30) == 7

    record = await enqueued[child].record()
    assert (record.state, record.options["workflow"] if record.options else None) == (becomes, "nightly")


async def test_a_result_of_another_type_than_declared_fails_the_job_and_names_the_field(app: Dutiful) -> None:
    @app.job
    async def loose() -> Any:
        return "text"

    @app.job
    async def strict(number: int) -> None: ...

    async with running(app):
        flow = await chain(loose.call(), strict.call(PREVIOUS)).enqueue()
        with pytest.raises(JobFailed, match="number"):
            await flow.result(30)


async def test_a_whole_workflow_is_cancelled_also_what_runs(app: Dutiful) -> None:
    started = asyncio.Event()

    @app.job
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    @app.job
    async def after() -> None: ...

    async with running(app):
        flow = await group([endless.call(), endless.call()], then=after.call()).enqueue()
        await started.wait()
        assert await flow.cancel("not needed") == 3
        for job in flow.jobs:
            with pytest.raises(JobCancelled, match="not needed"):
                await job.result(30)

    assert (await flow.progress()).states == {"cancelled": 3}


async def test_blocking_code_enqueues_a_workflow(app: Dutiful) -> None:
    @app.job
    async def one() -> int:
        return 1

    @app.job
    async def more(n: int) -> int:
        return n + 1

    def blocking() -> int:
        return int(chain(one.call(), more.call(PREVIOUS)).sync.enqueue().result(30))

    async with running(app):
        assert await asyncio.to_thread(blocking) == 2
    app.close_sync()


async def test_jobs_that_exist_already_can_be_parents(app: Dutiful) -> None:
    @app.job
    async def first() -> str:
        return "first"

    @app.job
    async def second(ctx: Context) -> Any:
        return (await ctx.parents())[0].result

    async with running(app):
        existing = await first.enqueue()
        flow = app.workflow()
        node = flow.add(second.call(), after=[existing])
        assert await (await flow.enqueue())[node].result(30) == "first"


async def test_nothing_is_stored_of_a_workflow_that_is_wrong(app: Dutiful) -> None:
    @app.job
    async def number() -> int:
        return 1

    @app.job
    async def text(value: str) -> str:
        return value

    @app.job
    async def none(value: int | None) -> None: ...

    odd: Any = {"x": PREVIOUS}

    def flow() -> Any:
        return app.workflow()

    cycle = flow()
    first, second = cycle.add(number.call()), cycle.add(number.call())
    first.after(second)
    second.after(first)
    with pytest.raises(UsageError, match=r"cycle.*job 1 \(number\) → job 2 \(number\)"):
        await cycle.enqueue()

    other = flow()
    foreign = other.add(number.call())
    with pytest.raises(UsageError, match="of another workflow: its result cannot be an argument of none"):
        flow().add(none.call(foreign.result))
    with pytest.raises(UsageError, match="of another workflow: number cannot run after it"):
        flow().add(number.call(), after=[foreign])

    wrong = flow()
    wrong.add(text.call(wrong.add(number.call()).result))
    with pytest.raises(UsageError, match=r"value is declared as str, but is to get .*declared as int"):
        await wrong.enqueue()

    lacking = flow()
    lacking.add(none.call(lacking.add(number.call()).result), on_failure="run")
    assert len(lacking.prepare()[1]) == 2
    strict = flow()
    strict.add(text.call(strict.add(text.call("a")).result), on_failure="run")
    with pytest.raises(UsageError, match=r"value may have no result: declare it as str \| None"):
        await strict.enqueue()

    tenants = flow()
    tenants.add(number.options(tenant="acme").call())
    tenants.add(number.options(tenant="zeta").call())
    with pytest.raises(UsageError, match="one tenant"):
        await tenants.enqueue()

    unknown = flow()
    unknown.add(number.call(), after=[app.new_id()])
    with pytest.raises(UsageError, match="depends_on: there is no job"):
        await unknown.enqueue()

    bad = flow()
    bad.add(text.call(value=7))  # type: ignore[arg-type]
    bad.add(number.call())
    with pytest.raises(PayloadInvalid, match="value"):
        await bad.enqueue()

    for make, message in (
        (lambda: flow().add("number"), "give a call"),
        (lambda: chain(), "has no jobs"),
        (lambda: group([]), "has no jobs"),
        (lambda: chain(number.call(), "x"), "cannot be part of a chain"),
        (lambda: flow().add(text.call(PREVIOUS)), "nothing comes before it"),
        (lambda: chain(text.call(PREVIOUS)).workflow(), "nothing comes before it"),
        (lambda: chain(number.call(), text.call(odd)).workflow(), "among other values"),
        (lambda: flow().add(number.call(), after=["x"]), "is not a job's id"),
        (lambda: flow().add(number.call(), on_failure="ignore", after=[app.new_id()]), "on_failure 'ignore' must be"),
        (lambda: flow().prepare(), "has no jobs"),
    ):
        with pytest.raises(Exception, match=message):
            make()

    assert (await app.jobs()).jobs == []


async def test_a_unique_key_that_is_taken_refuses_the_whole_workflow(app: Dutiful) -> None:
    @app.job
    async def one() -> None: ...

    holder = await one.options(unique="nightly").enqueue()
    with pytest.raises(UsageError, match="unique key"):
        await chain(one.options(unique="nightly").call(), one.call()).enqueue()
    with pytest.raises(UsageError, match="Give the key to the first job"):
        await chain(one.call(), one.options(unique="nightly").call()).enqueue()

    assert [job.id for job in await app.jobs()] == [holder.id]


async def test_a_tenant_has_workflows_of_its_own(app: Dutiful) -> None:
    @app.job
    async def one() -> None: ...

    foreign = await app.tenant("zeta").enqueue(one)
    flow = app.tenant("acme").workflow("own")
    flow.add(one.call())
    enqueued = await flow.enqueue()
    assert (await enqueued.jobs[0].record()).tenant == "acme"

    stranger = app.tenant("acme").workflow()
    stranger.add(one.call(), after=[foreign])
    with pytest.raises(UsageError, match="there is no job"):
        await stranger.enqueue()


async def test_a_workflow_of_a_tenant_shares_its_correlation_id_with_no_other_tenant(app: Dutiful) -> None:
    @app.job
    async def one() -> None: ...

    theirs = await app.tenant("zeta").enqueue(one, correlation_id="order-7")
    flow = app.tenant("acme").workflow("own", correlation_id="order-7")
    flow.add(one.call())
    own = await flow.enqueue()

    assert (await own.progress()).total == 1
    assert await own.cancel() == 1
    assert (await theirs.record()).state is State.READY
