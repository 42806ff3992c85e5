"""Writes the migration of a supervised process: its tables, facts, supervisor, kickoff and handlers."""

import json
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dutiful.stores.postgres.engine.identifiers import literal, quoted
from dutiful.stores.postgres.supervisor_plan import DB_FUNCTION, Key, SupervisorPlan

MARK = "dutiful supervisor "  # begins the comment by which supervisors are found
# What the provider of a channel is to be asked, as an example for the before handler.
_REQUESTS = {
    "email": "'to_address', …, 'subject', …, 'body', …",
    "sms": "'to_number', …, 'body', …",
    "file_delete": "'bucket', …, 'object_key', …",
}
_NAMES_TASK = ("file_delete",)  # channels whose payloads name the task and its keys, too
_INDEXED = 2000  # bytes that all texts of a key may have together; a row of an index has room for some 2700
_TOKEN = re.compile(r"\{([a-z_]+)\}")
_FRAGMENT = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def migration(plan: SupervisorPlan) -> str:
    """The migration as SQL, which can be run again."""
    words = {**_names(plan), **_key_words(plan.keys)}
    words |= _policy(plan, words)
    words |= _rights(plan, words)
    fragments = _fragments("supervisor_work" if plan.channel == DB_FUNCTION else "supervisor_channel")
    words |= {name: fill(text, words) for name, text in fragments.items()}
    return fill(_template("supervisor"), words)


def fill(text: str, words: dict[str, str]) -> str:
    """Fills in all words in braces at once, so that nothing in a name is taken for one."""
    return _TOKEN.sub(lambda found: words[found[1]], text)


def _names(plan: SupervisorPlan) -> dict[str, str]:
    """Names are quoted; words that end in _text are constants."""
    names = plan.names
    schema, name = names.process.schema, names.process.name
    return {
        **names.tables,
        "process": str(names.process),
        "domain": quoted(schema),
        "domain_text": literal(quoted(schema)),
        "dutiful": plan.schema,
        "dutiful_text": literal(plan.schema),
        "task_id": quoted(names.task_id),
        "task_id_text": literal(names.task_id),
        "attempt_id": quoted(names.attempt_id),
        "attempt_id_text": literal(names.attempt_id),
        "attempt_index": quoted(f"{name}_attempt_by_task"),
        "missing_task_text": literal(f"missing_{names.task_id}"),
        "task_not_found_text": literal(f"{name}_task_not_found"),
        "attempt_not_found_text": literal(f"{name}_attempt_not_found"),
        "has_succeeded": names.own("has_{}_succeeded_attempt"),
        "count_failed": names.own("count_{}_failed_attempts"),
        "count_attempts": names.own("count_{}_attempts"),
        "is_stuck": names.own("is_{}_stuck"),
        "supervisor": names.supervisor,
        "supervisor_text": literal(names.supervisor),
        "kickoff": names.own("kickoff_{}"),
        "run_attempt": names.own("run_{}_attempt"),
        "before": str(plan.before),
        "success": str(plan.success),
        "error": str(plan.error),
        "work": str(plan.work),
        "unique_text": literal(f"{names.supervisor}:"),
        "correlation_text": literal(names.correlation),
    }


def _key_words(keys: tuple[Key, ...]) -> dict[str, str]:
    columns = ", ".join(quoted(key.name) for key in keys)
    longest = _INDEXED // max(sum(key.type == "text" for key in keys), 1)
    return {
        "key_columns": "\n    ".join(_column(key, alone=len(keys) == 1) for key in keys),
        "key_unique": "" if len(keys) == 1 else f",\n    unique ({columns})",
        "key_names": columns,
        "key_types": ", ".join(key.type for key in keys),
        "key_parameters": ", ".join(f"{_parameter(key)} {key.type}" for key in keys),
        "key_values": ", ".join(_parameter(key) for key in keys),
        "key_match": " and ".join(f"t.{quoted(key.name)} = {_parameter(key)}" for key in keys),
        "key_checks": "\n    ".join(line for key in keys for line in _checks(key, longest)),
        "work_arguments": ", ".join(f"_task.{quoted(key.name)}" for key in keys),
    }


def _column(key: Key, *, alone: bool) -> str:
    words = [quoted(key.name), key.type, "not null", *(["unique"] if alone else [])]
    if key.references is not None:
        words.append(f"references {key.references.table} ({quoted(key.references.name)})")
    return f"{' '.join(words)},"


def _parameter(key: Key) -> str:
    return quoted(f"_{key.name}")


def _checks(key: Key, longest: int) -> list[str]:
    """Lines that refuse a missing key, one that is too long, and one whose row does not exist."""
    lines = [f"if {_parameter(key)} is null then", *_refuse(literal(f"{key.name} is missing"))]
    if key.type == "text" and key.references is None:
        lines += [
            f"if octet_length({_parameter(key)}) > {longest} then",
            *_refuse(literal(f"{key.name} has more than {longest} bytes")),
        ]
    if key.references is not None:
        table, column = key.references.table, key.references.name
        lines += [
            f"if not exists (select 1 from {table} r where r.{quoted(column)} = {_parameter(key)}) then",
            *_refuse(f"{literal(f'{table} has no row whose {column} is ')} || {_parameter(key)}"),
        ]
    return lines


def _refuse(message: str) -> list[str]:
    return [f"    validation_failure_message := {message};", "    return;", "end if;"]


def _policy(plan: SupervisorPlan, words: dict[str, str]) -> dict[str, str]:
    seconds = float(f"{plan.base.total_seconds():.15g}")
    facts: dict[str, Any] = {
        "channel": plan.channel,
        "max_attempts": plan.max_attempts,
        "base_seconds": seconds,
        "keys": [key.name for key in plan.keys],
        "final_table": plan.names.final_table,
    }
    handlers = f"{plan.work}, which is yours" if plan.channel == DB_FUNCTION else "the handlers, which are yours"
    return {
        "command": _wrapped(plan.command),
        "yours": handlers,
        "max_attempts": str(plan.max_attempts),
        "base": f"{seconds:.15g} seconds",
        "channel_text": literal(plan.channel),
        "request": _REQUESTS.get(plan.channel, "…"),
        "attempt_payload": ",\n                    ".join(
            f"{literal(name)}, {value}" for name, value in _payload(plan, words).items()
        ),
        "comment_text": literal(MARK + json.dumps(facts, ensure_ascii=False)),
    }


def _wrapped(command: Sequence[str]) -> str:
    """The command in lines of a comment, as a shell reads it."""
    lines = [shlex.join(command[:4])]
    for option, value in zip(command[4::2], command[5::2], strict=True):
        word = shlex.join((option, value))
        if len(lines[-1]) + len(word) < 100:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return " \\\n--     ".join(lines)


def _payload(plan: SupervisorPlan, words: dict[str, str]) -> dict[str, str]:
    """What the payload of an attempt holds: ids and names of functions, no data."""
    payload = {"task_type": literal(plan.channel)}
    if plan.channel == DB_FUNCTION:
        payload["db_function"] = literal(words["run_attempt"])
    if plan.channel in _NAMES_TASK:
        payload[plan.names.task_id] = "_task_id"
        payload |= {key.name: f"_task.{quoted(key.name)}" for key in plan.keys}
    payload[plan.names.attempt_id] = "_attempt_id"
    if plan.channel != DB_FUNCTION:
        payload |= {f"{one}_handler": literal(words[one]) for one in ("before", "success", "error")}
    return payload


def _rights(plan: SupervisorPlan, words: dict[str, str]) -> dict[str, str]:
    types, own_work = words["key_types"], plan.channel == DB_FUNCTION
    handlers = () if own_work else (plan.before, plan.success, plan.error)
    by_worker = [words["supervisor"], *([words["run_attempt"]] if own_work else map(str, handlers))]
    signatures = [
        *(f"{words[one]}(bigint)" for one in ("has_succeeded", "count_failed", "count_attempts")),
        f"{words['is_stuck']}({types})",
        f"{words['kickoff']}({types}, timestamptz)",
        *([f"{words['work']}({types})"] if own_work else []),
        *(f"{one}(jsonb)" for one in by_worker),
    ]
    schemas = dict.fromkeys([plan.names.process.schema, *(one.schema for one in handlers)])
    return {
        "worker_role": quoted(plan.worker_role),
        "worker_role_text": literal(quoted(plan.worker_role)),
        "work_signature_text": literal(f"{words['work']}({types})"),
        **{f"{one}_signature_text": literal(f"{words[one]}(jsonb)") for one in ("before", "success", "error")},
        "all_functions": ",\n    ".join(dict.fromkeys(signatures)),
        "worker_functions": ",\n    ".join(f"{one}(jsonb)" for one in dict.fromkeys(by_worker)),
        "worker_schemas": ", ".join(map(quoted, schemas)),
    }


@cache
def _template(name: str) -> str:
    return Path(__file__).with_name("templates").joinpath(f"{name}.sql").read_text("utf-8")


def _fragments(name: str) -> dict[str, str]:
    _, *parts = _FRAGMENT.split(_template(name))
    return {name: text.strip("\n") + "\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}
