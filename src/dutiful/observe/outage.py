"""Logs what keeps a worker from its store, or from a broker: an outage once for all its parts, any other error once for
each of them."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from dutiful.core.duration import brief
from dutiful.core.errors import DutifulError, StoreAway

log = logging.getLogger("dutiful.worker")
REPEAT = 60.0  # seconds before an outage that lasts, or the same error of a part, is logged again


class OutageLog:
    """The parts of one worker report here, from any thread, whether the store answers them.

    An outage begins when it fails the first of them, and is over when it has answered all that it has failed.
    """

    def __init__(
        self, name: str = "the database", away: type[Exception] = StoreAway, logger: logging.Logger = log
    ) -> None:
        """`away` is the error that means an outage of what has this `name`."""
        self._name = name
        self._away_error = away
        self._logger = logger
        self.waiting: Callable[[], str] = lambda: "nothing waits"  # says what waits for the store
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._begun = self._logged = 0.0
        self._errors: dict[str, tuple[str, float]] = {}  # by part: its last other error, and when it was logged

    @contextmanager
    def watching(self, part: str) -> Iterator[None]:
        """Reports whether the block succeeds, and that it fails if the store is away; the error is raised on."""
        try:
            yield
        except self._away_error as error:
            self.failed(part, error)
            raise
        self.works(part)

    def failed(self, part: str, error: Exception, logger: logging.Logger = log) -> None:
        """Logs the error, unless it is part of an outage that was logged, or the same as a moment ago."""
        now = time.monotonic()
        with self._lock:
            if isinstance(error, self._away_error):
                self._away(part, error, now)
            else:
                self._log_once(part, error, logger, now)

    def works(self, part: str) -> None:
        """The store has answered this part, or the part has nothing to ask."""
        if part not in self._failing:  # without the lock, because it is asked often; only the part itself adds itself
            return
        with self._lock:
            self._failing.discard(part)
            if not self._failing:
                self._logger.warning("%s is back after %s", self._name, _length(self._begun))

    def _away(self, part: str, error: Exception, now: float) -> None:
        if not self._failing:
            self._begun = self._logged = now
            self._logger.warning("%s is away, and what needs it waits: %s", self._name, error)
        elif now - self._logged >= REPEAT:
            self._logged = now
            lasted, waits = _length(self._begun), self.waiting()
            self._logger.warning("%s has been away for %s; %s: %s", self._name, lasted, waits, error)
        self._failing.add(part)

    def _log_once(self, part: str, error: Exception, logger: logging.Logger, now: float) -> None:
        text = "".join(traceback.format_exception_only(error))
        last, at = self._errors.get(part, ("", 0.0))
        if text == last and now - at < REPEAT:
            return
        self._errors[part] = text, now
        if isinstance(error, DutifulError):
            logger.warning("%s: %s", part, error)
        else:
            logger.error("%s failed; it is retried", part, exc_info=error)


def level_of(error: Exception) -> int:
    """The level at which one of many that wait logs it: the worker has logged an outage for all of them."""
    return logging.DEBUG if isinstance(error, StoreAway) else logging.WARNING


def _length(begun: float) -> str:
    return brief(timedelta(seconds=time.monotonic() - begun))
