"""`dutiful server` and clients that connect but do not send a request, or do not read the answer."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Project

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this machine on Linux only")
START = "import sys; from dutiful.web import connections; {}; from dutiful.cli import main; sys.exit(main({!r}))"
HEAD = b"GET /livez HTTP/1.1\r\nhost: here\r\n"
Start = Callable[[str], int]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db").write_jobs()


@pytest.fixture
def start(project: Project) -> Iterator[Start]:
    """Starts a server with other limits, and returns its port."""
    servers: list[subprocess.Popen[bytes]] = []

    def start(limits: str) -> int:
        path = project.folder / "log"
        command = [sys.executable, "-c", START.format(limits, ["server", "--port", "0"])]
        with path.open("wb") as log:
            servers.append(
                subprocess.Popen(command, cwd=project.folder, env=project.environment(), stdout=log, stderr=log)
            )
        until = time.monotonic() + 120
        while not (found := re.search(r"running on http://127\.0\.0\.1:(\d+)", path.read_text())):
            assert servers[-1].poll() is None and time.monotonic() < until, path.read_text()
            time.sleep(0.02)
        return int(found[1])

    yield start
    for server in servers:
        server.kill()
        server.wait()


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def answer(connection: socket.socket) -> bytes:
    """The first line of the answer to a request that is complete."""
    connection.sendall(HEAD + b"\r\n")
    received = b""
    while b'{"status":"ok"}' not in received and (piece := connection.recv(65536)):
        received += piece
    return received.partition(b"\r\n")[0]


def eventually(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.05)


def test_a_connection_that_sends_no_whole_request_is_closed(start: Start) -> None:
    # Long enough that a loaded machine answers the others before.
    port = start("connections.HEAD_TIME = connections.BODY_TIME = 3")
    silent, half, again, body, unread = (connect(port) for _ in range(5))
    half.sendall(HEAD)
    assert answer(again) == b"HTTP/1.1 200 OK"
    again.sendall(HEAD)  # half of a second request
    body.sendall(b"POST /api/jobs/admin/jobs/ HTTP/1.1\r\nhost: here\r\ncontent-length: 100\r\n\r\n{")
    unread.sendall(HEAD + b"content-length: 100\r\n\r\n")  # an answer comes, but the body never does

    assert rest(silent) == rest(half) == b""
    assert b"HTTP/1.1" not in rest(again)
    assert rest(body).startswith(b"HTTP/1.1 401"), "without a token its body is not waited for"
    assert rest(unread).startswith(b"HTTP/1.1 200")


def test_a_byte_now_and_then_does_not_keep_a_connection_open(start: Start) -> None:
    port = start("connections.HEAD_TIME = connections.BODY_TIME = 0.5")
    head, body = connect(port), connect(port)
    head.sendall(HEAD)
    body.sendall(HEAD + b"content-length: 1000000\r\n\r\n")
    open_ones = {head: b"x-more: 1\r\n", body: b"x"}
    until = time.monotonic() + 60
    while open_ones:
        assert time.monotonic() < until, "each byte gives it more time"
        for connection, more in list(open_ones.items()):
            connection.settimeout(0.05)
            try:
                connection.sendall(more)
                if not connection.recv(65536):
                    del open_ones[connection]
            except TimeoutError:
                pass
            except OSError:
                del open_ones[connection]


def test_a_reader_that_takes_nothing_is_cut(start: Start) -> None:
    port = start("connections.HEAD_TIME = connections.BODY_TIME = 0.5")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.connect(("127.0.0.1", port))
    slow.sendall(b"GET /api/jobs/openapi.json HTTP/1.1\r\nhost: here\r\n\r\n" * 200)
    eventually(lambda: not _established(port, slow.getsockname()[1]))
    slow.close()


def _established(port: int, of: int) -> bool:
    """Whether the server still has its end of the connection from the port `of`."""
    return any(row[1].endswith(f":{port:04X}") and row[2].endswith(f":{of:04X}") for row in _sockets("01"))


def _sockets(state: str) -> list[list[str]]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row for row in rows if row[3] == state]


def test_a_stream_is_not_a_silent_connection(start: Start, project: Project) -> None:
    job = project.run("enqueue", "greet", "name=Ada", "--delay", "1h")
    made = project.run("tokens", "create", "--name", "ada", "--role", "manager", "--json")
    job_id, token = re.search(r"\w{7}(-\w{7}){3}", job.out), re.search(r"dtf_[\w-]{43}", made.out)
    assert job_id is not None and token is not None, job.err + made.err
    port = start("connections.HEAD_TIME = connections.BODY_TIME = 0.5")
    stream = connect(port)
    stream.sendall(
        f"GET /api/jobs/{job_id[0]}/events HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {token[0]}\r\n\r\n".encode()
    )
    received = b""
    while b"snapshot" not in received:
        received += stream.recv(65536)

    for _ in range(3):
        rest(connect(port))  # has waited for longer than a request may take
    project.run("jobs", "cancel", job_id[0])
    while b"cancelled" not in received:
        received += stream.recv(65536)


def test_a_flood_of_connections_closes_its_own(start: Start) -> None:
    port = start("connections.MOST = 40; connections.HEAD_TIME = 600")
    kept, idle = connect(port), connect(port, "127.0.0.2")
    assert answer(kept) == b"HTTP/1.1 200 OK"
    flood = [connect(port, "127.0.0.3") for _ in range(400)]

    assert answer(kept) == b"HTTP/1.1 200 OK", "a client with one connection has not lost it"
    assert answer(idle) == b"HTTP/1.1 200 OK"
    eventually(lambda: len(_connections(port)) <= 40)
    assert sum(_is_open(one) for one in flood) <= 40
    assert answer(connect(port, "127.0.0.3")) == b"HTTP/1.1 200 OK"


def _connections(port: int) -> list[list[str]]:
    return [row for row in _sockets("01") if row[1].endswith(f":{port:04X}")]


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_a_client_that_has_vanished_is_noticed(start: Start) -> None:
    """The kernel asks clients that say nothing; a row has the timer 02 while it waits to."""
    port = start("pass")
    quiet = connect(port)
    eventually(lambda: [row[5].partition(":")[0] for row in _connections(port)] == ["02"])
    quiet.close()
