"""What benchmarks count of a server and of processes, on work whose amount is known."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread, Timer

import psycopg
import pytest

from benchmarks.costs import _ACTIVE, ServerMeter, read, server_meter
from benchmarks.round_trips import counted
from databases import missing
from servers import PostgresServer

NAME = "measured"
BURN = "SELECT count(*) FROM generate_series(1, 1500000)"
# Prints what it has used, then waits until it may end.
BURNER = "import time\nwhile time.process_time() < 0.3: pass\nprint(time.process_time(), flush=True)\ninput()"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that nothing else uses, because all that a server does is counted."""
    if reason := PostgresServer.available(18):
        missing(reason)
    with PostgresServer(18) as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    yield server.create_database(NAME)
    server.drop_database(NAME)


@pytest.fixture
def meter(server: PostgresServer) -> Iterator[ServerMeter]:
    with server_meter(server.dsn()) as meter:
        yield meter


def test_a_hundred_commits_are_counted_as_a_hundred(url: str, meter: ServerMeter) -> None:
    before = meter.commits(NAME)
    with session_of(url):
        pass
    opening = meter.commits(NAME) - before
    session = session_of(url)
    for _ in range(60):
        session.execute("SELECT 1")
    for _ in range(40):
        with session.transaction():
            session.execute("SELECT 1")
            session.execute("SELECT 2")
    with session.transaction(force_rollback=True):
        session.execute("SELECT 1")
    # It has not reported all of them yet, and ends only while the meter waits for that.
    Timer(0.3, session.close).start()
    assert meter.commits(NAME) - before == opening + 100 + opening


def test_the_log_of_known_messages_is_counted_in_bytes(url: str, meter: ServerMeter) -> None:
    with session_of(url) as session:
        since = read(meter)
        for _ in range(100):
            session.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000))")
        found = read(meter).per_job(since, 100)["wal_bytes_per_job"]
    # Each has a head of its own, and now and then there is one of a page.
    assert 1000 < found < 1150


def test_the_cpu_of_backends_is_counted_while_they_run_and_after_they_ended(url: str, meter: ServerMeter) -> None:
    with session_of(url) as session:
        before, _ = meter.cpu()
        used = -cpu_of(session.info.backend_pid)
        session.execute(BURN)
        used += cpu_of(session.info.backend_pid)
        running, _ = meter.cpu()
    meter.commits(NAME)
    ended, _ = meter.cpu()
    assert used > 0.05
    # Its kernel rounds to 10 ms, and a backend needs a little to end.
    assert running - before == pytest.approx(used, abs=0.03)
    assert ended - before == pytest.approx(used, abs=0.1)


def test_a_server_is_not_still_while_a_session_waits(url: str, meter: ServerMeter) -> None:
    with session_of(url) as session:
        waiting = Thread(target=session.execute, args=["SELECT pg_sleep(0.3)"])
        waiting.start()
        while not meter._value(_ACTIVE):
            pass

        asyncio.run(meter.still())

        assert not meter._value(_ACTIVE)
        waiting.join()


def test_the_meter_does_not_count_itself(meter: ServerMeter) -> None:
    before, _ = meter.cpu()
    meter._value(BURN)
    assert meter.cpu()[0] - before < 0.03


def test_the_cpu_of_clients_is_that_of_a_whole_tree() -> None:
    def start(command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    # The first child has ended when the second has begun, and the shell waits for that one.
    script = '"$1" -c "$2" </dev/null 2>/dev/null; "$1" -c "$2"'
    with start(["sh", "-c", script, "sh", sys.executable, BURNER]) as tree:
        assert tree.stdout is not None and tree.stdin is not None
        used = sum(float(tree.stdout.readline()) for _ in range(2))
        found = read(None, [tree.pid]).client_s
        tree.stdin.close()
    assert used >= 0.6
    assert found == pytest.approx(used, abs=0.1)


def test_round_trips_are_counted_one_by_one(server: PostgresServer, url: str, tmp_path: Path) -> None:
    with counted(server.port, tmp_path / "trips") as trips, session_of(trips.through(url)) as session:
        session.execute("CREATE TABLE text (line text)")
        before = trips.count
        for _ in range(50):
            session.execute("SELECT repeat('x', 100000) FROM generate_series(1, 3)")
        assert trips.count - before == 50
        with session.cursor().copy("COPY text FROM STDIN") as copy:
            copy.write_row(["one"])
        assert trips.count - before == 52
        before = trips.count
        with session.pipeline():
            for _ in range(3):
                session.execute("SELECT 1")
        assert trips.count - before == 1


def session_of(url: str) -> psycopg.Connection:
    # To prepare a statement is a round trip and a commit of its own.
    return psycopg.connect(url, autocommit=True, prepare_threshold=None)


def cpu_of(pid: int) -> float:
    """As `ps` counts it."""
    output = subprocess.run(["cat", f"/proc/{pid}/stat"], capture_output=True, text=True, check=True).stdout
    fields = output.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
