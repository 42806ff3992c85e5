"""Logs what others may cause in any number: the first at once, and then once a minute with how many there were."""

import logging
import time
from collections.abc import Callable

EVERY = 60.0  # seconds


class SparseLog:
    """One for each part that drops what it is sent; `sort` says what is alike."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._logged: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def log(self, level: int, sort: str, message: str, *args: object) -> None:
        now = self._clock()
        if (last := self._logged.get(sort)) is not None and now - last < EVERY:
            self._left_out[sort] = self._left_out.get(sort, 0) + 1
            return
        self._logged[sort] = now
        more = f" (and {count:,} more such before)" if (count := self._left_out.pop(sort, 0)) else ""
        self._logger.log(level, message + "%s", *args, more)

    def warning(self, sort: str, message: str, *args: object) -> None:
        self.log(logging.WARNING, sort, message, *args)
