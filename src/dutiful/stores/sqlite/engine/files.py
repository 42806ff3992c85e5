"""Makes files that only their owner may read, whatever the umask says: payloads are in the database."""

import os
import stat
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600


def make_database(path: str) -> None:
    """Makes an empty file, which SQLite takes for an empty database, unless there is one.

    SQLite gives the files that it makes beside a database the mode of the database itself.
    """
    with suppress(OSError):  # it exists; or it cannot be made, and SQLite says why
        os.close(_make(os.path.realpath(path), PRIVATE))


def open_beside(path: str, database: str) -> int:
    """Opens a file for writing; a new one gets the mode of the database, so that both have the same users."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        try:
            like = Path(database).stat()
        except OSError:
            like = None
        with suppress(FileExistsError):  # another process was faster
            fd = _make(path, PRIVATE if like is None else stat.S_IMODE(like.st_mode) & 0o666)
            if like is not None and os.geteuid() == 0:  # as SQLite does, so that root locks no other user out
                os.fchown(fd, like.st_uid, like.st_gid)
            return fd


def _make(path: str, mode: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    os.fchmod(fd, mode)  # without the umask
    return fd
