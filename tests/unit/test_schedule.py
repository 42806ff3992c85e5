"""What is stored of a schedule is what was declared."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dutiful import Dutiful, UsageError
from dutiful.core.cron import Every
from dutiful.declare.schedule import when_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def app() -> Dutiful:
    app = Dutiful()

    @app.job
    async def bill() -> None: ...

    return app


@pytest.mark.parametrize(
    ("every", "stored"),
    [
        ("1s", "every 1s"),
        ("14d", "every 1209600s"),
        (timedelta(days=36_525), "every 3155760000s"),
        (timedelta(days=36_524, microseconds=1), "every 3155673600.000001s"),
        ("1234567s", "every 1234567s"),
        ("1500ms", "every 1.5s"),
        (timedelta(seconds=100, microseconds=100), "every 100.0001s"),
    ],
)
def test_an_interval_is_stored_exactly_and_read_again(app: Dutiful, every: timedelta | str, stored: str) -> None:
    spec = app.schedule(app.kind("bill"), every=every)
    record = spec.record(NOW)
    assert record.expression == stored
    assert when_of(record) == spec.when


def test_an_interval_as_it_was_once_written_is_still_read(app: Dutiful) -> None:
    record = app.schedule(app.kind("bill"), every="1d").record(NOW)
    old = msgspec.structs.replace(record, expression="every 1.2096e+06s")
    assert when_of(old) == Every("14d")
    with pytest.raises(UsageError, match=r"schedule bill: .*'soon' is not a length of time"):
        when_of(msgspec.structs.replace(record, expression="every soon"))
