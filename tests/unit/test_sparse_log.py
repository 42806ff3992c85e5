"""What others may cause in any number is logged once a minute, with how many there were."""

import logging

import pytest

from dutiful.observe.sparse import EVERY, SparseLog


def test_the_first_is_logged_at_once_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 5.0
    sparse = SparseLog(logging.getLogger("test"), lambda: now)
    for n in range(1_000):
        sparse.warning("a", "message %d is dropped", n)
    sparse.warning("b", "another")
    now += EVERY
    sparse.warning("a", "message %d is dropped", 1_000)
    now += EVERY
    sparse.warning("a", "message %d is dropped", 1_001)

    assert [record.getMessage() for record in caplog.records] == [
        "message 0 is dropped",
        "another",
        "message 1000 is dropped (and 999 more such before)",
        "message 1001 is dropped",
    ]
