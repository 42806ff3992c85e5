"""How far one attempt has come, as its handler says; safe to use from any thread."""

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from dutiful.core.error_info import storable
from dutiful.core.errors import UsageError
from dutiful.core.items import ItemName, Ledger
from dutiful.core.job import Claim
from dutiful.core.pipeline import check_percent, overall
from dutiful.tracking import Report

MESSAGE_LIMIT = 2_000


class Notes(Protocol):
    """Where a track goes when it has changed."""

    def note(self, track: "Track") -> None: ...


class Track:
    """The state of one attempt's progress; whoever writes it asks for the `report` at that moment."""

    def __init__(self, claim: Claim, notes: Notes, phases: int = 1) -> None:
        self.claim = claim
        self.job_id = claim.job_id
        self.claim_id = claim.claim_id
        self.closed = False  # what is said from now on comes too late
        self.ledgers: list[Ledger] = []  # of the phase that runs, or of a job that has none; the last one is shown
        self._notes = notes
        self._lock = threading.Lock()
        self._phases = phases
        self._phase: str | None = None
        self._position = 0
        self._percent: float | None = None
        self._counted = False  # the percentage follows from the items
        self._message: str | None = None

    def enter(self, phase: str, position: int) -> None:
        """A phase begins: nothing of the one before is left."""
        with self._lock:
            self._phase, self._position = phase, position
            self._percent, self._counted, self._message = 0.0, False, None
            self.ledgers = []

    def finish(self) -> None:
        """The phase has come to its end."""
        with self._lock:
            self._percent, self._counted = 100.0, False

    def progress(self, percent: float | None, message: str | None) -> None:
        if percent is not None:
            check_percent(percent)
        if message is not None and not isinstance(message, str):
            raise UsageError(f"the message of a progress must be a text, not {message!r:.80}")
        with self._lock:
            if percent is not None:
                self._percent, self._counted = percent, False
            if message is not None:
                self._message = message
        self._touch()

    def itemise(self, names: Iterable[ItemName]) -> Ledger:
        ledger = Ledger(names)
        with self._lock:
            self.ledgers.append(ledger)
            self._counted = True
        self._touch()
        return ledger

    def mark(self, change: Callable[..., None], *args: object) -> None:
        """Change a ledger; changes wait for each other, so that none is lost."""
        # No context manager of our own: a thread that is interrupted inside of one would keep the lock.
        with self._lock:
            change(*args)
        self._touch()

    def report(self) -> Report:
        with self._lock:
            percent, message = self._percent, self._message
            shown = self.ledgers[-1] if self.ledgers else None
            if self._counted and shown is not None and shown.total:
                percent = 100 * shown.ended / shown.total
            return Report(
                job_id=self.job_id,
                claim_id=self.claim_id,
                phase=self._phase,
                percent=percent,
                overall=None if percent is None else overall(self._position, percent, self._phases),
                # Secrets are looked for in what is stored: most of what a busy handler says never is.
                message=None if message is None else storable(str.__str__(message), MESSAGE_LIMIT),
                items=None if shown is None else msgspec.json.encode(shown.shape()).decode(),
            )

    def _touch(self) -> None:
        if not self.closed:
            self._notes.note(self)
