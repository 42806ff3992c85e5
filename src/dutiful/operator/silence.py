"""Workers that fell silent and did not sign off: their processes may have ended, or may go on at any time."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from dutiful.core.duration import brief
from dutiful.core.errors import UsageError
from dutiful.duties import Process, WorkerRecord

SILENCE = timedelta(hours=1)
"""For how long a worker that nobody can see is waited for; one that goes on later than this is not reckoned with."""


class Silent(msgspec.Struct, frozen=True):
    """A worker that may go on with what is drained; `remedy` is what a person can do to be sure."""

    worker: str
    since: datetime
    process: Process
    remedy: str


def is_silent(worker: WorkerRecord) -> bool:
    return not worker.alive or worker.process is Process.STOPPED


def may_go_on(worker: WorkerRecord, fleet: Sequence[WorkerRecord], gone: Collection[str], now: datetime) -> bool:
    """Whether it lives, or may for all that is known; `gone` are those of which a person says that they do not."""
    if worker.process is Process.ENDED:
        return False
    if worker.alive or is_there(worker):
        return True
    if worker.name in gone:
        return False
    # Two processes have the same host and pid only if the first has ended.
    replaced = any(other.name == worker.name and other.started_at > worker.seen_at for other in fleet)
    return not replaced and now - worker.seen_at < SILENCE


def is_there(worker: WorkerRecord) -> bool:
    """Whether its process can be seen to be there, whatever it does."""
    return worker.process in (Process.RUNS, Process.STOPPED)


def check_gone(names: Sequence[str], fleet: Sequence[WorkerRecord]) -> None:
    """Refuse those of whom it is not true, or that nobody has heard of."""
    for name in names:
        found = [worker for worker in fleet if worker.name == name]
        if not found:
            unseen = [one for one in fleet if not (one.alive or is_there(one) or one.process is Process.ENDED)]
            known = ", ".join(one.name for one in unseen) or "none"
            raise UsageError(f"there is no worker {name!r}; silent, and not to be seen from here, are: {known}")
        if any(map(is_there, found)):
            raise UsageError(f"worker {name!r} is not gone: its process is there; end it first")
        if any(worker.alive and worker.process is not Process.ENDED for worker in found):
            raise UsageError(f"worker {name!r} is not gone: it has given a sign of life lately; stop it first")


def silent(worker: WorkerRecord, now: datetime) -> Silent:
    return Silent(worker.name, worker.seen_at, worker.process, _remedy(worker, now))


def _remedy(worker: WorkerRecord, now: datetime) -> str:
    since = f"{worker.name} has said nothing for {brief(now - worker.seen_at)}"
    if worker.process is Process.STOPPED:
        go_on, end = f"kill -CONT {worker.pid}", f"kill -KILL {worker.pid}"
        return f"{since}, for its process is stopped: let it go on ({go_on}), or end it ({end})"
    if worker.process is Process.RUNS:
        return f"{since}, but its process is there: see what it does (kill -TTIN {worker.pid}), or end it"
    return f"{since} and has not signed off: be sure that its process has ended, then drain with --gone {worker.name}"
