"""Signs of life from a worker process to its supervisor.

A call into C that keeps the interpreter lock stops every thread of its process: the event loop, the renewal of leases,
and whatever could end it. Only another process can tell, by the signs that do not come.
"""

import os
from pathlib import Path

PULSE = "DUTIFUL_PULSE"  # the file descriptor that a worker writes its signs to
EVERY = 1.0  # seconds


class Pulse:
    """Gives signs of life; it gives none in a process without a supervisor."""

    def __init__(self) -> None:
        # Taken out of the environment, because the number means another file to the programs that a handler starts.
        given = os.environ.pop(PULSE, None)
        self._to = None if given is None else int(given)
        if self._to is not None:
            os.set_inheritable(self._to, False)
            os.set_blocking(self._to, False)  # a supervisor that is stopped does not read them

    def beat(self) -> bool:
        """False if the supervisor has ended."""
        if self._to is not None:
            try:
                os.write(self._to, b".")
            except BlockingIOError:
                pass
            except BrokenPipeError:
                return False
        return True


class Silence:
    """How long a worker has given no sign, in looks: time in which the supervisor itself was stopped does not count."""

    def __init__(self, pid: int, signs: int) -> None:
        self._pid = pid
        self._signs = signs
        os.set_blocking(signs, False)
        self._looks: int | None = None  # since the last sign; None before the first: it may take long to start

    def look(self) -> float:
        """Called every second; returns the seconds of silence."""
        try:
            found = os.read(self._signs, 4096)
        except BlockingIOError:
            # A person who has stopped it, or looks into it with a debugger, knows.
            if self._looks is not None and not _is_stopped(self._pid):
                self._looks += 1
        else:
            self._looks = 0 if found else None
        return (self._looks or 0) * EVERY


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False  # not Linux, or it has just ended
