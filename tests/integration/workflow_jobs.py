"""A chain for workers in processes of their own, the first of which dies between an end and what waits for it."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from dutiful import Dutiful
from dutiful.delivery.base import QueueLevels
from dutiful.maintenance.dependents import Releaser
from dutiful.maintenance.promotion import Gates
from dutiful.store.leadership import Survey

app = Dutiful()
DEATH = "WORKFLOW_DEATH"  # a file that the worker deletes when it dies


@app.job
async def first() -> int:
    return 20


@app.job
async def second(number: int) -> int:
    return number + 1


_ended = Releaser.ended


def _die_once(self: Releaser, job_ids: Iterable[UUID]) -> None:
    """The end of the parent is stored, and its child is not released yet."""
    mark = Path(os.environ[DEATH])
    if mark.exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    _ended(self, job_ids)


_tick = Gates.tick


def _is_to_die() -> bool:
    return Path(os.environ[DEATH]).exists()


async def _tick_afterwards(self: Gates, survey: Survey) -> QueueLevels | None:
    """The sweep of the worker that is to die could release the child in the moment before."""
    return None if _is_to_die() else await _tick(self, survey)


if DEATH in os.environ:
    Releaser.ended = _die_once  # type: ignore[method-assign]
    Gates.tick = _tick_afterwards  # type: ignore[method-assign]
