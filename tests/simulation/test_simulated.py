"""The harness of the models: an example says nothing about the next one."""

from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from simulated import Run, simulate_postgres, simulate_sqlite

from databases import CleanDatabase
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from suite.builders import KIND, T0, new_job, pause, state

LENGTH = settings(max_examples=5, stateful_step_count=1, derandomize=True, database=None, deadline=None)


class Pausing(RuleBasedStateMachine):
    """Pauses a kind at the same moment in each example, long enough for all to have seen it."""

    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.store, self.run = store, run

    @rule(_=st.integers())
    def pause(self, _: int) -> None:
        self.run(self.store.jobs.insert([job := new_job()], now=T0))
        self.run(pause(self.store, PauseScope.KIND, KIND, now=T0))
        for minutes in (2, 3):
            self.run(self.store.promotion.sweep(10, now=T0 + timedelta(minutes=minutes)))
        assert self.run(state(self.store, job.id)) is State.BLOCKED


def test_no_example_on_sqlite_remembers_the_one_before(tmp_path: Path, sqlite_template: Path) -> None:
    simulate_sqlite(Pausing, tmp_path, sqlite_template, LENGTH)


def test_no_example_on_postgres_remembers_the_one_before(clean18: CleanDatabase) -> None:
    simulate_postgres(Pausing, clean18, LENGTH)
