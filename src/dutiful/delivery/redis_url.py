"""Reads the address of a Redis server; no error repeats a part that may be a password."""

from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from dutiful.core.errors import UsageError

_FORM = "redis://host:6379/0, rediss:// for TLS, or unix:///path/to/redis.sock"
_ESCAPED = "in a password, write : as %3A, / as %2F, ? as %3F, # as %23, @ as %40, [ as %5B"


class RedisAddress(msgspec.Struct, frozen=True):
    host: str
    port: int
    database: int
    tls: bool
    socket: str | None
    username: str | None
    password: str | None

    def __str__(self) -> str:
        """For messages and logs: without a password."""
        user = f"{self.username}@" if self.username else ""
        if self.socket is not None:
            return f"unix://{user}{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{user}{host}:{self.port}/{self.database}"

    def __repr__(self) -> str:
        return f"<RedisAddress {self}>"


def read_redis_url(url: str) -> RedisAddress:
    parts = _split(url.strip())
    if parts is None or parts.scheme not in ("redis", "rediss", "unix"):
        raise UsageError(f"redis_url is no address of a Redis server: write {_FORM}; {_ESCAPED}")
    socket = unquote(parts.path) if parts.scheme == "unix" else None
    if (parts.scheme == "unix" and not socket) or parts.fragment or "@" in parts.path:
        raise UsageError(f"redis_url is malformed: write {_FORM}; {_ESCAPED}")
    name = "" if socket is not None else parts.path.removeprefix("/")
    if name and not (name.isdecimal() and len(name) < 6):
        raise UsageError(f"redis_url names a database that is no number: write {_FORM}; {_ESCAPED}")
    if parts.query:
        raise UsageError("redis_url has options after a `?`, which are not used: leave them out")
    return RedisAddress(
        host=parts.hostname or "localhost",
        port=parts.port or 6379,
        database=int(name or 0),
        tls=parts.scheme == "rediss",
        socket=socket,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )


def _split(url: str) -> SplitResult | None:
    """None if the parser refuses it: its error may quote the password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - read, because only then it is checked
        return parts
    except ValueError:
        return None
