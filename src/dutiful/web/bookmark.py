"""Where the reader of a stream stands, in a word that it can come back with."""

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta

from dutiful.core.event import Event

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# The moment, how much later the last event happened that was read, and the marks of those read in between.
_FORM = re.compile(r"(\d{1,17})-(\d{1,17})-([\w~.]*)", re.ASCII)
# A reader of a busy stream would carry a long word; it hears some events twice instead, and their keys tell.
MOST = 64


class Bookmark:
    """A moment before which all has been read, and what has been read of what happened since."""

    def __init__(self, since: datetime, read: dict[str, datetime] | None = None) -> None:
        self.since = since
        self._read = read or {}

    @classmethod
    def parse(cls, text: str | None) -> "Bookmark | None":
        """None if it is none of ours: then the reader begins anew."""
        found = _FORM.fullmatch(text or "")
        if found is None:
            return None
        since = _EPOCH + int(found[1]) * _MICROSECOND
        latest = since + int(found[2]) * _MICROSECOND
        return cls(since, {mark: latest for mark in found[3].split(".") if mark})

    def has(self, event: Event) -> bool:
        return _mark(event) in self._read

    def move(self, since: datetime, event: Event) -> None:
        """The event has been read, and nothing that is still to come happened before `since`."""
        if since > self.since:
            self.since = since
            self._read = {mark: at for mark, at in self._read.items() if at >= since}
        self._read[_mark(event)] = event.at
        while len(self._read) > MOST:
            del self._read[next(iter(self._read))]

    def __str__(self) -> str:
        latest = max([self.since, *self._read.values()])
        numbers = [(self.since - _EPOCH) // _MICROSECOND, (latest - self.since) // _MICROSECOND]
        return "-".join([*map(str, numbers), ".".join(self._read)])


def _mark(event: Event) -> str:
    digest = hashlib.blake2b(event.job_id.bytes + event.key.encode(), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode().replace("-", "~")
