"""How both stores are set against a model: the lengths of a run, and a store for each of its examples."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from databases import CleanDatabase
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from suite.builders import new_id

T = TypeVar("T")
Run = Callable[[Awaitable[Any]], Any]
Machine = Callable[[Store, Run], RuleBasedStateMachine]


def each_length(examples: int, steps: int) -> pytest.MarkDecorator:
    """The short run is the same each time; the long one, of `make soak`, searches anew and shrinks what it finds."""
    short = settings(
        max_examples=examples,
        stateful_step_count=60,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    long = settings(
        short,
        max_examples=int(os.environ.get("DUTIFUL_SOAK_EXAMPLES", "1000")),
        stateful_step_count=steps,
        derandomize=False,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
    )
    marks = [pytest.mark.soak, pytest.mark.timeout(0)]
    return pytest.mark.parametrize(
        "length", [pytest.param(short, id="short"), pytest.param(long, id="long", marks=marks)]
    )


def simulate_sqlite(machine: Machine, folder: Path, template: Path, length: settings) -> None:
    """A file of its own for each example, and no syncs, because no power is cut."""
    stores: list[Store] = []
    with _running() as run:

        def make() -> RuleBasedStateMachine:
            while stores:
                run(stores.pop().close())
            path = shutil.copyfile(template, folder / f"{new_id()}.db")
            stores.append(store := SqliteStore(path, synchronous="OFF"))
            run(store.open())
            return machine(store, run)

        _simulate(make, length)
        run(stores.pop().close())


def simulate_postgres(machine: Machine, database: CleanDatabase, length: settings) -> None:
    """The same connections for all, as each new one would have to compile the functions anew."""
    store = PostgresStore(database.reset())
    with _running() as run:
        run(store.open())

        def make() -> RuleBasedStateMachine:
            database.reset(alone=False)
            # A store remembers which pauses it has swept, and whose turn it is. All examples begin at the same time, so
            # that a pause of one is taken for that of the one before, and what fails once does not fail again.
            store._attach(store._session)
            return machine(store, run)

        _simulate(make, length)
        run(store.close())


@contextmanager
def _running() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield lambda call: runner.run(_awaited(call))


async def _awaited(call: Awaitable[T]) -> T:
    return await call


def _simulate(machine: Any, length: settings) -> None:
    # The annotation of Hypothesis asks for a class, but any callable will do.
    run_state_machine_as_test(machine, settings=length)
