"""The error rate of the last attempts of a kind."""

from datetime import UTC, datetime, timedelta

import pytest

from dutiful.core.metrics.last import EndedAttempts, last_attempts

T0 = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.req("L82")
def test_the_last_ten_attempts_count_or_all_of_the_last_minutes_if_they_are_more() -> None:
    def rated(*ended: tuple[int, int, int]) -> float | None:
        """Of minutes ago, count and failures."""
        last = last_attempts([EndedAttempts(T0 - timedelta(minutes=ago), *some) for ago, *some in ended], T0)
        return last and last.error_rate

    assert rated() is None
    assert rated((1, 1, 1)) == 0.1  # attempts that there have not been yet count as good
    assert rated((1, 1, 1), (60, 1, 1)) == 0.2
    assert rated((1, 5, 5)) == 0.1  # the retries of one job
    assert rated((1, 2, 2), (3, 2, 2), (5, 1, 1)) == 0.1
    assert rated((0, 1, 1), (5, 1, 1)) == 0.2
    assert rated((1, 10, 3)) == 0.3
    assert rated((1, 5, 3), (2, 5, 2)) == 0.5  # enough of them in the window
    assert rated((0, 5, 0), (4, 15, 2), (30, 10, 10)) == 0.1
    assert rated((60, 4, 0), (120, 6, 1), (180, 1, 1)) == 0.1  # the eleventh is not among the last ten
    assert rated((60, 4, 0), (120, 5, 1), (180, 3, 1)) == pytest.approx(2 / 12)  # minutes count whole
    assert rated((7, 10, 10)) is None  # it ran only once, not lately
    assert rated((5, 10, 10)) == 1.0 and rated((6, 10, 10)) is None  # the whole minute in which it began
    assert rated((1, 9, 3)) == 0.1 and rated((1, 5, 0), (6, 5, 5)) == 0.1  # nine in the window, and five
    assert rated((130, 1, 1), (190, 1, 1)) is None and rated((110, 1, 1), (170, 1, 1)) == 0.2
