"""Whose jobs the workers that live would take, as far as people let them."""

import pytest

from dutiful.core.serving import serving

LANES = {"fast": {"queues": ["fast"]}, "general": {"queues": ["*"]}}


@pytest.mark.parametrize(
    ("paused", "fast", "other"), [((), True, True), (("general",), True, False), (("*",), False, False)]
)
def test_a_paused_lane_takes_nothing_and_a_pause_of_every_lane_stops_them_all(
    paused: tuple[str, ...], fast: bool, other: bool
) -> None:
    served = serving([(LANES, ["email"])], {("lane", name) for name in paused})

    assert (served.takes("email", "fast", None), served.takes("email", "other", None)) == (fast, other)
