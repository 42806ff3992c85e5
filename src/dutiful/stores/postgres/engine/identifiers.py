"""Names of Postgres: how users write them, and how SQL quotes them."""

import re

import msgspec

from dutiful.core.errors import UsageError

LONGEST = 63  # bytes; Postgres cuts the rest off
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_PART = re.compile(r'[A-Za-z_][A-Za-z0-9_]*|"(?:[^"]|"")+"')
# Characters that end a line, hide or reorder text, or could end a body in dollar quotes or a constant.
_UNFIT = re.compile(r"[$\\\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

# What Postgres reads as something else than a name (pg_get_keywords(), catcode R and T).
_KEYWORDS = """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema
    current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for
    foreign freeze from full grant group having ilike in initially inner intersect into is isnull join lateral
    leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps
    placing primary references returning right select session_user similar some symmetric system_user table
    tablesample then to trailing true union unique user using variadic verbose when where window with
"""
# What it reads as a name in most places only (catcode C).
_HALF = """
    between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout int
    integer interval json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
    json_serialize json_table json_value least merge_action national nchar none normalize nullif numeric out overlay
    position precision real row setof smallint substring time timestamp treat trim values varchar xmlattributes
    xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
"""
RESERVED = frozenset(_KEYWORDS.split())
_QUOTED = RESERVED | frozenset(_HALF.split())


class QualifiedName(msgspec.Struct, frozen=True):
    """A name with its schema, both as Postgres stores them."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def quoted(name: str) -> str:
    """The name as SQL has to spell it."""
    if _PLAIN.fullmatch(name) and name not in _QUOTED:
        return name
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text without backslashes as a constant of SQL."""
    return "'" + text.replace("'", "''") + "'"


def parse(text: str, what: str) -> list[str]:
    """The parts of a name as users write it: plain, which is folded to lower case, or in double quotes."""
    parts, rest = [], text
    while found := _PART.match(rest):
        part = found[0]
        parts.append(part[1:-1].replace('""', '"') if part.startswith('"') else part.lower())
        rest = rest[found.end() :]
        if not rest.startswith("."):
            break
        rest = rest[1:] or "."
    if rest or not parts:
        raise UsageError(
            f"{what} {text!r:.100} is not a name of SQL: write letters, digits and _, or put each part in double quotes"
        )
    return [fitting(part, what) for part in parts]


def parse_one(text: str, what: str) -> str:
    parts = parse(text, what)
    if len(parts) != 1:
        raise UsageError(f"{what} {text!r:.100} must be one name, without a schema")
    return parts[0]


def parse_qualified(text: str, what: str, schema: str | None = None) -> QualifiedName:
    """SCHEMA.NAME; the schema may be left out if there is a default."""
    parts = parse(text, what)
    if len(parts) == 1 and schema is not None:
        parts = [schema, *parts]
    if len(parts) != 2:
        raise UsageError(f"{what} {text!r:.100} must be a name with its schema, as in comms.send_email")
    return QualifiedName(*parts)


def fitting(name: str, what: str) -> str:
    if _UNFIT.search(name):
        raise UsageError(
            f"{what} {name!a:.100} has a $, a backslash, a line break or an invisible character in it: remove it"
        )
    if len(name.encode()) > LONGEST:
        raise UsageError(f"{what} {name!r:.100} is too long: Postgres keeps {LONGEST} bytes of a name")
    return name
