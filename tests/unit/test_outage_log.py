"""What a worker logs while its store is away."""

from types import SimpleNamespace

import pytest

from dutiful.core.errors import DataRefused, StoreAway, StoreUnavailable
from dutiful.observe.outage import OutageLog

AWAY = StoreAway("no answer")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr("dutiful.observe.outage.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_an_outage_is_logged_when_it_begins_each_minute_and_when_it_is_over(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    outages = OutageLog()
    outages.waiting = lambda: "3 outcomes wait"
    for _ in range(150):
        for part in ("lane", "leases"):
            outages.failed(part, AWAY)
        clock.now += 1
    outages.works("lane")
    outages.works("heartbeat")
    outages.works("leases")

    assert caplog.messages == [
        "the database is away, and what needs it waits: no answer",
        "the database has been away for 1m; 3 outcomes wait: no answer",
        "the database has been away for 2m; 3 outcomes wait: no answer",
        "the database is back after 2m30s",
    ]


def test_an_outage_is_not_over_while_one_part_still_fails(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    outages = OutageLog()
    outages.failed("poll", AWAY)
    outages.failed("outcomes", AWAY)
    outages.works("poll")  # a full disk can be read
    outages.failed("outcomes", AWAY)

    assert len(caplog.messages) == 1


def test_a_second_outage_is_logged_again(clock: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    for _ in range(2):
        outages.failed("poll", AWAY)
        outages.works("poll")

    assert len(caplog.messages) == 4


def test_another_error_of_a_part_is_logged_once_a_minute_and_begins_no_outage(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    outages = OutageLog()
    for error in (DataRefused("bad statement"), StoreUnavailable("locked by another transaction")):
        for _ in range(90):
            outages.failed("lane", error)
            clock.now += 1
    outages.works("lane")

    assert caplog.messages == ["lane: bad statement"] * 2 + ["lane: locked by another transaction"] * 2


def test_an_unforeseen_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    OutageLog().failed("lane", KeyError("oops"))

    (record,) = caplog.records
    assert (record.levelname, record.exc_info is not None) == ("ERROR", True)


def test_watching_reports_and_raises(caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    with pytest.raises(StoreAway), outages.watching("poll"):
        raise AWAY
    with pytest.raises(DataRefused), outages.watching("poll"):
        raise DataRefused("the caller logs this")
    with outages.watching("poll"):
        pass

    assert len(caplog.messages) == 2
