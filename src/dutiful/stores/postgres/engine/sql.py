"""The store's named statements, for one schema."""

import re

from dutiful.core.errors import UsageError
from dutiful.stores.postgres.engine.identifiers import RESERVED
from dutiful.stores.postgres.schema_files import expand
from dutiful.stores.statements import Statements, load

_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


def statements(schema: str) -> Statements:
    """Statements without their comments, in which some drivers would find parameters."""
    loaded = load("dutiful.stores.postgres")
    return Statements(
        {name: expand(_COMMENT.sub("", text)).replace("{schema}", schema) for name, text in loaded.items()}
    )


_PLAIN = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OF_THE_SERVER = re.compile(r"pg_.*|information_schema")
_LONGEST_WITH_TENANTS = 63 - len("_sql_worker")


def check_schema(name: str) -> None:
    if not _PLAIN.fullmatch(name):
        raise UsageError(f"schema {name!r} must be a plain lower-case name, such as dutiful")
    if name in RESERVED or _OF_THE_SERVER.fullmatch(name):
        raise UsageError(f"schema {name!r} is a name that Postgres keeps for itself: choose another, such as dutiful")


def check_tenants_schema(name: str) -> None:
    """Whether tenants can be kept apart in it."""
    if name == "public":
        raise UsageError(
            "tenants need a schema of Dutiful's own, and public is shared by all: choose another by the setting schema"
        )
    if len(name) > _LONGEST_WITH_TENANTS:
        raise UsageError(
            f"schema {name!r} is too long for its groups, as {name}_sql_worker: tenants need a name of at most "
            f"{_LONGEST_WITH_TENANTS} characters"
        )
