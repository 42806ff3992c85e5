"""Reads addresses of databases. What is malformed is refused, and no error repeats a part that may be a password."""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from dutiful.core.errors import UsageError
from dutiful.core.redaction.redact import secret_in

Scheme = Literal["sqlite", "postgresql"]

_FORMS = "postgresql://user@host/database, sqlite:///jobs.db or sqlite:////absolute/path.db"
_POSTGRES = "postgresql://user@host/database"
_ESCAPED = "in a password, write : as %3A, / as %2F, ? as %3F, # as %23, @ as %40, [ as %5B"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
# The schemes that an error may show: another one may be a password in the wrong place.
_KNOWN = frozenset(("cockroachdb", "file", "http", "https", "mariadb", "mongodb", "mssql", "mysql", "oracle", "redis"))
_PORT = re.compile(r":([^:\]]*)\Z")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_LOGIN = re.compile(r":.*@|://", re.DOTALL)  # as in user:password@host
_PLAIN_PATH = re.compile(r"\.{0,2}/(?!/)|[^:@=?&;#'\"]*\Z", re.DOTALL)


def scheme_of(url: str, setting: str = "database_url") -> Scheme:
    """Which kind of store the address is of; a path without a scheme is an SQLite file."""
    found = _URL.match(url)
    if found is None:
        return "sqlite"
    scheme = found[1].lower()
    if scheme == "sqlite":
        return "sqlite"
    if scheme in ("postgresql", "postgres"):
        return "postgresql"
    base = scheme.partition("+")[0]
    shown = f"the scheme {scheme!r}" if base in (*_KNOWN, "postgresql", "postgres", "sqlite") else "an unknown scheme"
    raise UsageError(f"{setting} has {shown}; write {_FORMS}")


def sqlite_path(url: str) -> Path:
    """sqlite:///relative.db, sqlite:////absolute.db, or a bare path.

    A path that looks like a URL with a password is refused: the password would become the name of a file.
    """
    found = _URL.match(url)
    path = url
    if found is not None:
        parts = _split(url, "database_url")
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path:
            raise UsageError(f"database_url has no path in the right place: write {_FORMS}")
    bare = found is None
    if (
        not path
        or _UNPRINTABLE.search(path)
        or _LOGIN.search(path)
        or (bare and (_PLAIN_PATH.match(path) is None or "//" in path))
        or secret_in(path) is not None
    ):
        raise UsageError(f"database_url is neither a URL nor the plain path of a file: write {_FORMS}; {_ESCAPED}")
    return Path(path)


def redacted_url(url: str, setting: str = "database_url") -> str:
    """The address of a Postgres database for messages and logs: no password, no options."""
    if _URL.match(url) is None or scheme_of(url, setting) != "postgresql":
        raise UsageError(f"{setting} is no address of a Postgres database: write {_POSTGRES}; {_ESCAPED}")
    parts = _split(url, setting)
    # An unescaped / ? or # in a password ends the host there, and what follows would be taken for the database's name.
    misplaced = "@" in parts.path or parts.fragment or not _is_query(parts.query)
    if misplaced or any(c.isspace() for c in parts.netloc):
        raise UsageError(f"{setting} is malformed: write {_POSTGRES}; {_ESCAPED}")
    whose, _, hosts = parts.netloc.rpartition("@")
    if "@" in whose:
        raise UsageError(f"{setting} is malformed: write {_POSTGRES}; in a name or a password, write @ as %40")
    for host in hosts.split(","):  # there may be several, with a standby to take over
        port = _PORT.search(host)
        if port is not None and not (port[1].isdecimal() and 0 < int(port[1]) < 2**16):
            raise UsageError(
                f"{setting} has a port that is not a number from 1 to 65535: write {_POSTGRES}; {_ESCAPED}"
            )
    user = whose.partition(":")[0]
    return urlunsplit((parts.scheme, f"{user}@{hosts}" if user else hosts or "localhost", parts.path, "", ""))


def _split(url: str, setting: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        pass
    # Raised out here, so that the parser's error, which may quote the password, is no context of this one.
    raise UsageError(f"{setting} is no address: write {_FORMS}; {_ESCAPED}")


def _is_query(query: str) -> bool:
    if not query:
        return True
    try:
        return all(name.isidentifier() for name, _ in parse_qsl(query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        return False
