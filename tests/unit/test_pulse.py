"""Signs of life: what counts as silence, and what does not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dutiful.cli.commands.worker import _live_with
from dutiful.worker.pulse import PULSE, Pulse, Silence


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as started:
        yield started
        started.kill()


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Pulse]]:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # as a supervisor gives it
    monkeypatch.setenv(PULSE, str(writing))
    yield reading, Pulse()
    for end in (reading, writing):
        with suppress(OSError):
            os.close(end)


def test_a_worker_is_silent_from_its_last_sign_on(process: subprocess.Popen[bytes], signs: tuple[int, Pulse]) -> None:
    reading, pulse = signs
    silence = Silence(process.pid, reading)
    assert [silence.look() for _ in range(3)] == [0, 0, 0], "it has not begun"
    pulse.beat()
    assert [silence.look() for _ in range(3)] == [0, 1, 2]
    pulse.beat()
    assert [silence.look() for _ in range(2)] == [0, 1]


def test_a_worker_that_a_person_has_stopped_or_that_ends_is_not_silent(
    process: subprocess.Popen[bytes], signs: tuple[int, Pulse]
) -> None:
    reading, pulse = signs
    silence = Silence(process.pid, reading)
    pulse.beat()
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert [silence.look() for _ in range(3)] == [0, 0, 0]
    process.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
    assert silence.look() == 1
    os.close(pulse._to or -1)
    assert [silence.look() for _ in range(2)] == [0, 0]


def test_signs_that_are_not_read_keep_no_worker_waiting_and_their_file_is_its_secret(signs: tuple[int, Pulse]) -> None:
    _, pulse = signs
    for _ in range(100_000):  # more than a pipe holds
        pulse.beat()
    assert PULSE not in os.environ and not os.get_inheritable(pulse._to or -1)
    Pulse().beat()  # without a supervisor


@pytest.mark.parametrize("killed", ["before it asked for its parent", "afterwards"])
def test_a_worker_ends_with_its_supervisor(
    signs: tuple[int, Pulse], monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    reading, pulse = signs
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *given: ended.append(given))
    parent = os.getppid()
    if killed == "afterwards":
        parent += 1
    else:
        os.close(reading)
    _live_with(parent, pulse)
    assert ended == [(os.getpid(), signal.SIGTERM)]
