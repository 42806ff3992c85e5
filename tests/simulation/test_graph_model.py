"""Random graphs with policies, ended in random orders, against a simple model."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from simulated import Run, each_length, simulate_postgres, simulate_sqlite

from databases import CleanDatabase
from dutiful.core.job import Claim, NewJob, OnFailure
from dutiful.core.outcome import Cancelled, Failed
from dutiful.core.states import State
from dutiful.maintenance.dependents import release_all
from dutiful.store import Store
from suite.builders import OOPS, claim, complete, new_job, settle, states

ENDS = {State.COMPLETED: None, State.FAILED: Failed(OOPS, final=True), State.CANCELLED: Cancelled("no use")}
DEAD = (State.FAILED, State.CANCELLED)
BY_POLICY = {OnFailure.CANCEL: State.CANCELLED, OnFailure.FAIL: State.FAILED}


class GraphModel:
    """What is to become of each job: ready when no parent is left to wait for, or ended by a policy."""

    def __init__(self, jobs: list[NewJob]) -> None:
        self.jobs = jobs
        self.states = {job.id: State.BLOCKED if job.depends_on else State.READY for job in jobs}

    def follow(self, found: dict[UUID, State]) -> None:
        """Parents come first. Of several that failed, the first that is noticed decides, so any may have."""
        for job in self.jobs:
            if self.states[job.id] is State.BLOCKED:
                dead = [policy for need, policy in job.edges if self.states[need] in DEAD]
                if allowed := {BY_POLICY[policy] for policy in dead if policy is not OnFailure.RUN}:
                    assert found[job.id] in allowed
                    self.states[job.id] = found[job.id]
                elif all(self.states[need].final for need, _ in job.edges):
                    self.states[job.id] = State.READY


@st.composite
def graphs(draw: st.DrawFn) -> list[list[tuple[int, OnFailure]]]:
    """For each job, the earlier ones that it depends on, and how."""
    size = draw(st.integers(2, 12))
    return [
        draw(
            st.lists(
                st.tuples(st.integers(0, n - 1), st.sampled_from(OnFailure)), max_size=4, unique_by=lambda edge: edge[0]
            )
        )
        if n
        else []
        for n in range(size)
    ]


class GraphMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.store, self.run = store, run
        self.held: dict[UUID, Claim] = {}

    @initialize(edges=graphs())
    def enqueue(self, edges: list[list[tuple[int, OnFailure]]]) -> None:
        jobs: list[NewJob] = []
        for parents in edges:
            needs = tuple(jobs[parent].id for parent, _ in parents)
            jobs.append(new_job(depends_on=needs, policies=tuple(policy for _, policy in parents)))
        self.model = GraphModel(jobs)
        self.run(self.store.jobs.insert(jobs))

    @rule(
        picks=st.lists(st.tuples(st.integers(0, 100), st.sampled_from([*ENDS])), min_size=1, max_size=4),
        killed=st.booleans(),
    )
    def end_some(self, picks: list[tuple[int, State]], killed: bool) -> None:
        """`killed`: the worker stores the ends, and dies before it releases what waits for them."""
        self.held |= {one.job_id: one for one in self.run(claim(self.store))}
        ready = sorted(job_id for job_id, state in self.model.states.items() if state is State.READY)
        assert ready == sorted(self.held)
        chosen = {ready[pick % len(ready)]: end for pick, end in picks} if ready else {}
        for job_id, end in chosen.items():
            self.model.states[job_id], outcome, one = end, ENDS[end], self.held.pop(job_id)
            self.run(complete(self.store, one) if outcome is None else settle(self.store, one, outcome))
        if not killed:
            self.run(release_all(self.store.dependents, chosen))
        else:
            while (swept := self.run(self.store.promotion.sweep(100))).moved:
                self.run(release_all(self.store.dependents, swept.next))
        stored = zip(self.model.states, self.run(states(self.store, [*self.model.states])), strict=True)
        found = {job_id: State.READY if state is State.RUNNING else state for job_id, state in stored}
        self.model.follow(found)
        assert found == self.model.states

    def teardown(self) -> None:
        assert self.run(self.store.queries.check_places()) == []


@pytest.mark.req("L101")
@each_length(60, steps=30)
def test_every_graph_on_sqlite_ends_as_its_policies_say(
    tmp_path: Path, sqlite_template: Path, length: settings
) -> None:
    simulate_sqlite(GraphMachine, tmp_path, sqlite_template, settings(length, stateful_step_count=15))


@pytest.mark.req("L101")
@each_length(60, steps=30)
def test_every_graph_on_postgres_ends_as_its_policies_say(clean18: CleanDatabase, length: settings) -> None:
    examples = max(1, length.max_examples // 3)
    simulate_postgres(GraphMachine, clean18, settings(length, max_examples=examples, stateful_step_count=15))
