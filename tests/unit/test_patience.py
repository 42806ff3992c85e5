"""How long nothing is rescued after an outage of the store."""

from datetime import timedelta

from dutiful.store.leadership import Patience


def test_patience_grows_with_the_lease() -> None:
    short, usual = (Patience.with_lease(timedelta(seconds=seconds)) for seconds in (3, 30))

    assert (short.gap, short.hold) == (timedelta(seconds=3), timedelta(seconds=6))
    assert (usual.gap, usual.hold) == (timedelta(seconds=10), timedelta(seconds=15))
