"""Jobs that were there at a worker's death, and may be the cause of it."""

from collections.abc import Callable, Sequence
from uuid import UUID

from dutiful.core.job import Claim


class Suspects:
    """One at a time in this process, lest two condemn each other."""

    def __init__(self) -> None:
        self._taken = False  # one is being claimed, or is here
        self._job_id: UUID | None = None
        self._denied: set[Callable[[], None]] = set()

    def seek(self, wake: Callable[[], None]) -> bool:
        """Whether a lane may claim one now; if not, `wake` is called when another may."""
        if self._taken:
            self._denied.add(wake)
            return False
        self._taken = True
        return True

    def found(self, claims: Sequence[Claim]) -> None:
        """What came of it."""
        self._job_id = next((claim.job_id for claim in claims if claim.crashes), None)
        if self._job_id is None:
            self._free()

    def forget(self, claim: Claim) -> None:
        if claim.job_id == self._job_id:
            self._free()

    def _free(self) -> None:
        self._taken, self._job_id = False, None
        denied, self._denied = self._denied, set()
        for wake in denied:
            wake()
