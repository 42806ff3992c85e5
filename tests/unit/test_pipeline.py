import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.errors import UsageError
from dutiful.core.job import PhaseState
from dutiful.worker.executor.progress import check_percent, overall


@pytest.mark.req("J34", "J35")
@pytest.mark.parametrize(("position", "percent", "expected"), [(0, 50, 17), (1, 25, 42), (2, 80, 93)])
def test_a_pipeline_of_three_is_as_far_as_its_phase(position: int, percent: float, expected: int) -> None:
    assert overall(position, percent, 3) == expected


@pytest.mark.req("J34")
@pytest.mark.parametrize(
    ("position", "percent", "phases", "expected"),
    [(0, 1, 2, 1), (1, 1, 2, 51), (0, 25, 2, 13), (1, 25, 2, 63), (0, 2.5, 1, 3), (0, 2.4, 1, 2), (0, 50, 4, 13)],
)
def test_halves_round_up(position: int, percent: float, phases: int, expected: int) -> None:
    assert overall(position, percent, phases) == expected


@pytest.mark.req("J34")
@given(st.integers(1, 50), st.data())
def test_a_pipeline_goes_from_0_to_100_and_never_back(phases: int, data: st.DataObject) -> None:
    moments = st.tuples(st.integers(0, phases - 1), st.floats(0, 100))
    earlier, later = sorted([data.draw(moments), data.draw(moments)])

    assert overall(0, 0, phases) == 0
    assert overall(phases - 1, 100, phases) == 100
    assert 0 <= overall(*earlier, phases) <= overall(*later, phases) <= 100


@pytest.mark.parametrize("percent", [0, 100, 33.3, 0.0])
def test_a_percentage_is_taken_as_it_is(percent: float) -> None:
    assert check_percent(percent) is percent


@pytest.mark.parametrize("percent", [140, -1, 100.01, math.nan, math.inf, -math.inf, True, False, "50", None])
def test_what_is_no_percentage_is_refused_with_the_remedy(percent: Any) -> None:
    with pytest.raises(UsageError, match="from 0 to 100") as refused:
        check_percent(percent)
    assert repr(percent) in str(refused.value)


def test_a_retry_that_resumes_passes_by_what_was_completed_or_skipped() -> None:
    assert {state for state in PhaseState if state.over} == {PhaseState.COMPLETED, PhaseState.SKIPPED}
