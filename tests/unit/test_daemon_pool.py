"""Daemon threads: as many as are needed, up to their number, and not waited for at the end."""

import sys
import threading
from collections.abc import Iterator

import pytest

from dutiful.concurrency.daemon_pool import DaemonPool


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns so often that they meet at every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_nothing_waits_while_another_thread_is_allowed() -> None:
    for _ in range(50):
        daemons, gate = DaemonPool(8, "test"), threading.Event()
        for _ in range(30):
            daemons.submit(lambda: None).result()
        busy = [daemons.submit(gate.wait) for _ in range(7)]
        try:
            assert daemons.submit(lambda: "at once").result(5) == "at once"
        finally:
            gate.set()
        for one in busy:
            one.result()
        daemons.close()
