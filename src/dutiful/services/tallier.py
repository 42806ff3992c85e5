"""Folds what workers have counted into minutes, hours and totals."""

import time
from datetime import timedelta

from dutiful.delivery import Lines
from dutiful.duties import Survey
from dutiful.measuring import Measuring

REST = 10.0  # about as often workers hand over: whoever asks reads few rows that are not folded yet
KEEP = timedelta(days=7)  # how long hours are kept; totals are for good


class Tallier:
    """Nobody waits for it: whoever asks also reads what is not folded yet."""

    name = "tallier"

    def __init__(self, store: Measuring) -> None:
        self._store = store
        self._not_before = 0.0

    async def tick(self, survey: Survey) -> Lines | None:
        if time.monotonic() >= self._not_before:
            while await self._store.fold_tallies(KEEP):
                pass
            self._not_before = time.monotonic() + REST
        return None
