"""What a supervised process is to be like: reads and checks the options of `dutiful supervisor new`."""

import re
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from dutiful.core.errors import UsageError
from dutiful.core.json import check_name
from dutiful.stores.postgres.engine.identifiers import (
    LONGEST,
    QualifiedName,
    parse_one,
    parse_qualified,
    quoted,
)

DB_FUNCTION = "db_function"
MAX_ATTEMPTS, BASE = 3, timedelta(seconds=10)
MOST_ATTEMPTS, LONGEST_WAIT = 100, timedelta(days=366)
KEY_TYPES = ("bigint", "integer", "smallint", "uuid", "text", "date")
_TAKEN = ("created_at", "scheduled_at", "new_task_id", "tenant")  # by columns and variables of the generated SQL
_FUNCTIONS = (  # that are generated, of a process
    "has_{}_succeeded_attempt", "count_{}_failed_attempts", "count_{}_attempts", "is_{}_stuck", "{}_supervisor",
    "kickoff_{}", "run_{}_attempt",
)  # fmt: skip
_NAME = r'"(?:[^"]|"")+"|\w+'
_REFERENCE = re.compile(rf"(?:({_NAME})=)?(.+?)(?:\( *({_NAME}) *\))?")


class Column(msgspec.Struct, frozen=True):
    """A column that a key references."""

    table: QualifiedName
    name: str


class Key(msgspec.Struct, frozen=True):
    """A column that says what a task is about."""

    name: str
    type: str = "bigint"
    references: Column | None = None


class ProcessNames(msgspec.Struct, frozen=True):
    """How the tables and functions of a process are called."""

    process: QualifiedName
    final_table: str

    @classmethod
    def of(cls, process: QualifiedName, final_table: str | None = None) -> "ProcessNames":
        return cls(process, final_table or f"{process.name}_task_failed")

    def own(self, pattern: str) -> str:
        """A name in the schema of the process, quoted; {} stands for the name of the process."""
        return str(QualifiedName(self.process.schema, pattern.replace("{}", self.process.name)))

    @property
    def task_id(self) -> str:
        return f"{self.process.name}_task_id"

    @property
    def attempt_id(self) -> str:
        return f"{self.process.name}_attempt_id"

    @property
    def supervisor(self) -> str:
        return self.own("{}_supervisor")

    @property
    def correlation(self) -> str:
        """What comes before the task's id in the correlation id of its jobs; it fits, whatever has to be quoted."""
        return f"{self.process.schema}.{self.process.name}/"

    @property
    def tables(self) -> dict[str, str]:
        return {
            "task": self.own("{}_task"),
            "attempt": self.own("{}_attempt"),
            "succeeded": self.own("{}_attempt_succeeded"),
            "failed": self.own("{}_attempt_failed"),
            "final": str(QualifiedName(self.process.schema, self.final_table)),
        }


class SupervisorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a supervisor, checked."""

    names: ProcessNames
    channel: str
    keys: tuple[Key, ...]
    max_attempts: int
    base: timedelta
    worker_role: str
    before: QualifiedName
    success: QualifiedName
    error: QualifiedName
    work: QualifiedName
    schema: str  # Dutiful's own
    command: tuple[str, ...]


def plan(
    process: str,
    *,
    channel: str,
    keys: Sequence[str] = (),
    references: Sequence[str] = (),
    max_attempts: int = MAX_ATTEMPTS,
    base: timedelta = BASE,
    before: str | None = None,
    success: str | None = None,
    error: str | None = None,
    work: str | None = None,
    final_table: str | None = None,
    worker_role: str | None = None,
    schema: str = "dutiful",
) -> SupervisorPlan:
    """Checks what a person has written; raises UsageError, which names the option and the remedy."""
    handlers = {"--before": before, "--success": success, "--error": error, "--work": work}
    once = {
        "--max-attempts": None if max_attempts == MAX_ATTEMPTS else str(max_attempts),
        "--base": None if base == BASE else f"{base.total_seconds():.15g}s",
        **handlers,
        "--final-table": final_table,
        "--worker-role": worker_role,
    }
    options = [("--key", key) for key in keys] + [("--references", one) for one in references] + [*once.items()]
    given = [word for option, value in options if value is not None for word in (option, value)]

    name = _process(process, schema)
    _check_channel(channel, handlers)
    _check_backoff(max_attempts, base)

    def function(option: str, default: str) -> QualifiedName:
        return parse_qualified(handlers[option] or quoted(default), option, name.schema)

    named = {
        "--before": function("--before", f"get_{name.name}_payload"),
        "--success": function("--success", f"record_{name.name}_success"),
        "--error": function("--error", f"record_{name.name}_failure"),
        "--work": function("--work", name.name),
    }
    _check_functions(name, {one: named[one] for one in named if (one == "--work") == (channel == DB_FUNCTION)})
    return SupervisorPlan(
        names=ProcessNames.of(name, _final_table(name, final_table)),
        channel=channel,
        keys=_keys(name, keys, references),
        max_attempts=max_attempts,
        base=base,
        worker_role=_worker_role(worker_role or quoted(f"{schema}_sql_worker")),
        before=named["--before"],
        success=named["--success"],
        error=named["--error"],
        work=named["--work"],
        schema=schema,
        command=("dutiful", "supervisor", "new", process, "--channel", channel, *given),
    )


def _process(text: str, schema: str) -> QualifiedName:
    name = parse_qualified(text, "SCHEMA.NAME")
    room = LONGEST - len("count__failed_attempts")
    if len(name.name.encode()) > room:
        raise UsageError(
            f"the name {name.name!r} is too long: its functions, as count_{name.name}_failed_attempts, may have "
            f"{LONGEST} bytes, which leaves {room} for the name"
        )
    if name.name.endswith("_failed"):
        raise UsageError(
            f"the name {name.name!r} must not end in _failed: its function count_{name.name}_attempts would replace "
            f"that which counts the failures of a process {name.name.removesuffix('_failed')}"
        )
    if name.schema in (schema, "information_schema") or name.schema.startswith("pg_"):
        raise UsageError(
            f"the schema {name.schema!r} is Dutiful's or the server's own: put the process into one of yours, because "
            "workers run no functions of those"
        )
    return name


def _check_channel(channel: str, handlers: dict[str, str | None]) -> None:
    check_name(channel, "--channel")
    if "\\" in channel or "$" in channel:
        raise UsageError(f"--channel {channel!r:.80} must have neither a backslash nor a $ in it")
    if channel != DB_FUNCTION and handlers["--work"] is not None:
        raise UsageError("--work is for the channel db_function: other channels have --before, --success and --error")
    for option in ("--before", "--success", "--error"):
        if channel == DB_FUNCTION and handlers[option] is not None:
            raise UsageError(f"{option} is for channels with a provider: with db_function, name the function by --work")


def _check_functions(process: QualifiedName, named: dict[str, QualifiedName]) -> None:
    """Each does one thing: of two with one name only the first would be made, and a failure recorded as a success."""
    taken = {
        QualifiedName(process.schema, pattern.format(process.name)): "the process itself" for pattern in _FUNCTIONS
    }
    for option, function in named.items():
        if (other := taken.get(function)) is not None:
            raise UsageError(f"{option} {function} is already the function of {other}: choose another name")
        taken[function] = option


def _check_backoff(max_attempts: int, base: timedelta) -> None:
    if not 1 <= max_attempts <= MOST_ATTEMPTS:
        raise UsageError(f"--max-attempts {max_attempts} must be from 1 to {MOST_ATTEMPTS}")
    if base <= timedelta(0):
        raise UsageError("--base must be longer than 0")
    if base.total_seconds() * 2.0 ** (max_attempts - 1) > LONGEST_WAIT.total_seconds():
        raise UsageError(
            f"--base {base.total_seconds():.15g}s doubles with each failure, so that the last of {max_attempts} "
            f"attempts would come after more than {LONGEST_WAIT.days} days: choose a shorter one, or fewer attempts"
        )


def _final_table(process: QualifiedName, text: str | None) -> str | None:
    if text is None:
        return None
    name = parse_one(text, "--final-table")
    if name in {f"{process.name}{end}" for end in ("_task", "_attempt", "_attempt_succeeded", "_attempt_failed")}:
        raise UsageError(f"--final-table {name!r} is another table of the process: choose another name")
    return name


def _worker_role(text: str) -> str:
    role = parse_one(text, "--worker-role")
    if role in ("public", "none"):
        raise UsageError(f"--worker-role {role} is not a role: name the one whose logins run the jobs")
    return role


def _keys(process: QualifiedName, keys: Sequence[str], references: Sequence[str]) -> tuple[Key, ...]:
    """The keys with their references; without any, one is named after the referenced column or the process."""
    found = [_key(text) for text in keys]
    columns: dict[str, Column] = {}
    for text in references:
        of_key, table, column = _reference(text)
        if not found:
            found = [Key(of_key or column or f"{process.name}_id")]
        if of_key is None and len(found) > 1:
            raise UsageError(
                f"--references {text!r:.100} must say of which key, as in {quoted(found[0].name)}={text:.80}"
            )
        name = of_key or found[0].name
        if name in columns or name not in {key.name for key in found}:
            raise UsageError(f"--references {text!r:.100}: {name!r} is no key that lacks a reference; add --key first")
        columns[name] = Column(table, column or name)
    found = [
        msgspec.structs.replace(key, references=columns.get(key.name)) for key in found or [Key(f"{process.name}_id")]
    ]
    for key in found:
        if key.name.startswith("_") or len(key.name.encode()) >= LONGEST:
            raise UsageError(f"--key {key.name!r} must begin with another character than _, and have at most 62 bytes")
        if key.name in (*_TAKEN, f"{process.name}_task_id") or [one.name for one in found].count(key.name) > 1:
            raise UsageError(f"--key {key.name!r} is the name of another column or variable: choose another")
    return tuple(found)


def _key(text: str) -> Key:
    name, _, column_type = text.rpartition(":") if ":" in text else (text, "", "bigint")
    if column_type not in KEY_TYPES:
        raise UsageError(f"--key {text!r:.100} must have a type of {', '.join(KEY_TYPES)}, as in account_id:bigint")
    return Key(parse_one(name, "--key"), column_type)


def _reference(text: str) -> tuple[str | None, QualifiedName, str | None]:
    """[KEY=]SCHEMA.TABLE[(COLUMN)]"""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise UsageError(f"--references {text!r:.100} must be like comms.email_message(email_message_id)")
    key, table, column = found.groups()
    return (
        None if key is None else parse_one(key, "--references"),
        parse_qualified(table, "--references"),
        None if column is None else parse_one(column, "--references"),
    )
