"""Blocking code: threads, plain handlers, forked children."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_workers import EVERYWHERE, eventually, working

from dutiful import Dutiful, JobFailed, Retry, State, StoreUnavailable, UniqueConflict, UsageError
from dutiful.core.job import OnConflict, Unique
from dutiful.kind import Kind

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)


@pytest.fixture
def square(app: Dutiful) -> Kind[[int], int]:
    @app.job(retry=Retry(max_attempts=1))
    async def square(n: int) -> int:
        return n * n

    return square


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@everywhere
async def test_plain_threads_enqueue_wait_and_cancel(
    app: Dutiful, square: Kind[[int], int], threads: ThreadPoolExecutor
) -> None:
    def work(n: int) -> tuple[int, bool, bool]:
        later = square.sync.options(delay="1h").enqueue(n)
        return square.sync.enqueue(n).result("20s"), later.cancel(), later.cancel()

    async with working(app):
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*(loop.run_in_executor(threads, work, n) for n in range(16)))
    assert answers == [(n * n, True, False) for n in range(16)]


async def test_the_blocking_form_has_the_same_errors_and_options(app: Dutiful, square: Kind[[int], int]) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def fails() -> None:
        raise LookupError("gone")

    def work() -> None:
        refuse = square.sync.options(unique=Unique("k", on_conflict=OnConflict.REJECT), delay="1h")
        first = refuse.enqueue(1)
        with pytest.raises(UniqueConflict) as taken:
            refuse.enqueue(1)
        assert taken.value.existing == first.id
        with pytest.raises(JobFailed, match="gone"):
            fails.sync.enqueue().result("20s")
        with pytest.raises(UsageError, match="priority"):
            square.sync.options(priority=-1)
        jobs = square.sync.enqueue_many([{"n": n} for n in range(3)])
        assert [job.result("20s") for job in jobs] == [0, 1, 4] and all(job.created for job in jobs)

    async with working(app):
        await asyncio.to_thread(work)


async def test_a_plain_handler_enqueues_and_waits_for_another(app: Dutiful, square: Kind[[int], int]) -> None:
    @app.job
    def outer(n: int) -> int:
        return square.sync.enqueue(n).result("20s") + 1

    async with working(app):
        job = await outer.enqueue(5)
        assert await job.result("20s") == 26


async def test_blocking_calls_from_many_threads_share_one_loop(app: Dutiful, square: Kind[[int], int]) -> None:
    def loops() -> int:
        return sum(thread.name == "dutiful sync" for thread in threading.enumerate())

    before = loops()
    await asyncio.gather(*(asyncio.to_thread(square.sync.enqueue, n) for n in range(4)))
    assert loops() == before + 1
    await asyncio.to_thread(app.close_sync)
    assert loops() == before
    assert (await asyncio.to_thread(square.sync.enqueue, 1)).created  # opened anew when it is needed again


def test_a_forked_child_can_enqueue(app_url: str) -> None:
    """The parent's loop, connections and locks are not the child's."""
    app = Dutiful(app_url)

    @app.job
    async def greet(name: str) -> None: ...

    mine = greet.sync.enqueue("parent")
    child_id = app.new_id()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # better dead than waiting for a thread that only the parent has
        try:
            greet.sync.options(id=child_id).enqueue("child")
            app.close_sync()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    still = greet.sync.enqueue("parent still can")
    app.close_sync()

    async def states() -> list[State]:
        async with app:
            records = [await app.find(job) for job in (mine.id, child_id, still.id)]
            return [record.state for record in records if record is not None]

    assert asyncio.run(states()) == [State.READY] * 3


def test_a_script_that_forgets_to_close_ends_quietly(app_url: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from dutiful import Dutiful\n"
        f"app = Dutiful({app_url!r})\n"
        "@app.job\n"
        "def greet(name: str) -> None: ...\n"
        "print(greet.sync.enqueue('Ada').public_id)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")

    async def found() -> bool:
        async with Dutiful(app_url) as app:
            return await app.find(done.stdout.strip()) is not None

    assert asyncio.run(found())


async def test_a_blocking_wait_ends_when_the_app_is_closed(
    app: Dutiful, square: Kind[[int], int], threads: ThreadPoolExecutor
) -> None:
    job = square.sync.enqueue(1)
    waiting = threads.submit(job.result)

    async def waited_for() -> bool:  # which shows nowhere else: a wait is neither a call nor a row
        thread = app._portal._thread
        return thread is not None and thread._client is not None and job.id in thread._client._waiter._waiters

    await eventually(waited_for)
    await asyncio.to_thread(app.close_sync)
    with pytest.raises(StoreUnavailable, match=f"the app was closed before job {job.public_id} was final"):
        waiting.result(20)


def test_calls_that_race_with_closing_end(app: Dutiful, square: Kind[[int], int], threads: ThreadPoolExecutor) -> None:
    stored, refused = [square.sync.enqueue(0)], 0
    for _ in range(5):
        stored.append(square.sync.enqueue(0))
        calls = [threads.submit(square.sync.enqueue, n) for n in range(8)]
        app.close_sync()
        for call in calls:
            try:
                stored.append(call.result(20))
            except StoreUnavailable:
                refused += 1
    assert len(stored) + refused == 6 + 40

    async def states() -> list[State | None]:
        async with app.opened() as client:
            found = [await client.find(job.id) for job in stored]
            return [record.state if record else None for record in found]

    assert asyncio.run(states()) == [State.READY] * len(stored), "what was acknowledged is stored"
    app.close_sync()
