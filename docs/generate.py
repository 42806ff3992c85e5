"""Writes the parts of the reference that follow from the code: `python docs/generate.py`, or with --check to compare.

A generated part stands between `<!-- generated: name -->` and `<!-- end -->`; everything else is written by hand.
"""

import ast
import inspect
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from dutiful.cli.registry import build
from dutiful.core import errors
from dutiful.core.duration import brief
from dutiful.core.states import FINAL, TABLE, State
from dutiful.declare.lane import LaneSettings
from dutiful.settings import Settings
from dutiful.web.app import OPERATIONS

DOCS = Path(__file__).parent
ROOT = DOCS.parent
TESTS = ("tests", "examples", "src")  # where tests with `req` marks are looked for
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

SETTINGS = {
    "app": "Which app the command line works with, as in `jobs:app`.",
    "profile": "Named settings, which other settings override. See [operating](../guides/operating.md#profiles).",
    "database_url": (
        "Where jobs are kept: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://user@host/database`. "
        "A path alone is a SQLite file; one that looks like an address, as `user:password@host` does, is refused. "
        "`DATABASE_URL` is read if `DUTIFUL_DATABASE_URL` is not set."
    ),
    "direct_url": "Postgres without the pooler, for LISTEN and locks. Without it, workers behind a pooler poll.",
    "schema": "The Postgres schema that holds Dutiful's tables and functions, nothing else; also the NOTIFY channel.",
    "redis_url": (
        "Redis, as in `redis://localhost:6379/0`: jobs are delivered through it to Arq workers. See "
        "[Redis and Arq](../guides/redis.md). Without it, workers find jobs in the database."
    ),
    "redis_prefix": "With what the names of keys in Redis begin. Each fleet on one Redis needs its own.",
    "sqlite_driver": "`apsw`, or `sqlite3` to enqueue in transactions of your own on a SQLite file.",
    "pool_size": "The most connections that one process takes from its Postgres pool.",
    "lock_connections": "The most connections that a worker takes for named locks, besides its pool. See "
    "[locks](../guides/locks.md#how-it-is-kept).",
    "lock_classes": "Numbers of namespaces of locks, for programs that take the same locks by SQL, as in "
    '`"edition=1; project=2"`. See [locks](../guides/locks.md#lock-classes).',
    "lanes": 'A worker\'s slots and the queues they serve, as in `"fast=3:fast; general=5:*:fair"`.',
    "kinds": "The kinds that a worker takes, separated by commas. Empty: all kinds of the app.",
    "claim_tenants": "The tenants whose jobs a worker takes, separated by commas. Empty: all jobs.",
    "tenants": "Whether every job must have a tenant: an enqueue without one is refused.",
    "lease": "How long a claim is valid unless it is renewed. At least 1s.",
    "grace": "How long running jobs may take to finish when a worker stops.",
    "poll": "How often a worker looks for jobs without a hint. At least 50ms.",
    "startup_timeout": (
        "How long `dutiful worker` waits for a database that is away or full when it starts; `0s`: not at all, "
        "`never`: without limit."
    ),
    "heartbeat": "How often a worker sends a heartbeat; after three times this long without one it counts as gone.",
    "timeout_grace": "How long a handler may take to stop after its timeout; then its attempt ends without it. See "
    "[stopping](../guides/stopping.md#handlers-that-do-not-stop).",
    "cancel_grace": "How long a handler may take to stop when its job is cancelled; then the job ends without it.",
    "lingering_limit": "How many handlers may run on without their jobs before a supervised worker is replaced.",
    "watchdog": "How far past its timeout, or `cancel_grace`, a job may hold the event loop before the worker exits, "
    "or the interpreter before its supervisor kills it.",
    "batch": "How many jobs a lane claims at most at once, and ahead of its slots.",
    "retry_attempts": "How often kinds that declare no retry are tried, the first run included.",
    "retry_base": "The first delay of kinds that declare no retry; it doubles each time.",
    "retry_max": "The longest delay of kinds that declare no retry, jitter included.",
    "retry_jitter": "Up to this share is added to each delay of kinds that declare no retry: `0.1` is 10 %.",
    "timeouts": "How long jobs of kinds that declare no timeout may run, by queue, as in "
    '`"fast=2m; *=20m"`; `none` is no limit.',
    "cpu_processes": "How many processes run `process=True` handlers, for each worker.",
    "payload_limit": "The largest payload, in bytes of JSON.",
    "result_limit": "The largest result, in bytes of JSON.",
    "error_message_limit": "How many characters of an error's message are stored; its traceback is stored separately.",
    "retention": "How long finished jobs are kept; `never` keeps them forever.",
    "event_retention": "How long an event that the app sends is kept for jobs that wait for it later.",
    "stale_after": "Mark finished jobs stale after this time, and delete only marked ones; `never` marks none.",
    "webhook_secrets": (
        "Secrets that sign [webhooks](../guides/webhooks.md), separated by commas, the newest first; "
        "`dutiful webhooks secret` makes one."
    ),
    "webhook_networks": "Networks that are not public and may be posted to, as in `10.1.0.0/16,127.0.0.0/8`.",
    "webhook_timeout": "How long a webhook's receiver may take to answer, from 100ms to 5m.",
    "smtp_url": (
        "The mail server of the [channel](../guides/channels.md) `email`, as in "
        "`smtps://user:password@mail.example.org?from=shop@example.org`."
    ),
    "sms_url": "Where the channel `sms` posts messages.",
    "sms_token": "The bearer token of `sms_url`.",
    "files_url": "The service that signs deletions for the channel `file_delete`.",
    "files_token": "The bearer token of `files_url`.",
    "metrics": "Whether a worker counts the outcomes of attempts. See [metrics](../guides/metrics.md).",
    "alert_interval": "How often the leader evaluates [alerts](../guides/alerts.md). At least 100ms.",
    "alerts_off": "Names of alerts that are not watched, separated by commas.",
    "runbook_url": "A prefix for the runbooks of the built-in alerts: the address where `docs/runbooks` can be read.",
    "log_format": "How `dutiful worker` and `dutiful server` [log](../guides/logging.md): `text` or `json`.",
    "tracing": "Whether enqueues and attempts make OpenTelemetry spans. See [tracing](../guides/tracing.md).",
    "breaker_failures": "How many failures in a row open a [breaker](../guides/breakers.md) without its own option.",
    "breaker_open_for": "How long such a breaker stays open, from 10ms to 365d.",
    "encrypted": (
        "Whether kinds that do not say it themselves are [encrypted](../guides/encryption.md), and the data of events."
    ),
    "encryption_keys": (
        "Keys of encrypted kinds, as `ID:KEY`, separated by commas: the first seals, all open; "
        "`dutiful encryption key` makes one."
    ),
    "notify_in_transaction": "Whether an enqueue in your own transaction wakes workers at its commit (Postgres).",
}
DEFAULTS = {"cpu_processes": "one less than the CPUs, at least 1"}


def settings() -> Iterator[str]:
    """Every setting, its variable and its default."""
    yield "| setting | environment | default | meaning |"
    yield "|---|---|---|---|"
    given = Settings()
    for field in fields(Settings):
        default = DEFAULTS.get(field.name) or _default(getattr(given, field.name))
        yield f"| `{field.name}` | `DUTIFUL_{field.name.upper()}` | {default} | {SETTINGS[field.name]} |"


def _default(value: Any) -> str:
    match value:
        case None | () | {} if not value:
            return "none"
        case timedelta():
            return f"`{brief(value)}`"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return f"`{'; '.join(_lane(lane) for lane in value)}`"
        case _:
            return f"`{value}`"


def _lane(lane: LaneSettings) -> str:
    return f"{lane.name}={lane.slots}:{','.join(lane.queues)}"


def diagram() -> Iterator[str]:
    """How a job may move, as a mermaid state diagram."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for state in (State.READY, State.SCHEDULED, State.BLOCKED):
        yield f"    [*] --> {state}: enqueue"
    acts: dict[tuple[State, State], list[str]] = {}
    for (start, act), ends in TABLE.items():
        for end in sorted(ends):
            acts.setdefault((start, end), []).append(act)
    for (start, end), names in acts.items():
        yield f"    {start} --> {end}: {', '.join(names)}"
    for state in State:
        if state in FINAL:
            yield f"    {state} --> [*]"
    yield "```"


def transitions() -> Iterator[str]:
    yield "| from | act | to |"
    yield "|---|---|---|"
    for (start, act), ends in TABLE.items():
        yield f"| {start} | {act} | {', '.join(sorted(ends))} |"


def error_classes() -> Iterator[str]:
    """Every error, whose child it is and what it means."""
    yield "| error | is a | meaning |"
    yield "|---|---|---|"
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.DutifulError):
            meaning = " ".join((found.__doc__ or "").split())
            yield f"| `{name}` | `{found.__mro__[1].__name__}` | {meaning} |"


def commands() -> Iterator[str]:
    """Every verb of the command line with its arguments and options."""
    for path, function in sorted(_verbs(build(None), "dutiful")):
        first, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
        parameters = dict(_parameters(function))
        words = [str(info.metavar or name.upper()) for name, info in parameters.items() if _is_argument(info)]
        yield f"### `{' '.join([path, *words])}`\n\n{first}\n"
        prose, _, examples = rest.strip().replace("\b\n", "").partition("Examples:")
        if prose.strip():
            yield f"{prose.strip()}\n"
        if parameters:
            yield "| option | default | meaning |\n|---|---|---|"
            yield from (_row(name, info, function) for name, info in parameters.items())
            yield ""
        if examples.strip():
            yield f"```sh\n{inspect.cleandoc(examples)}\n```\n"


def operations() -> Iterator[str]:
    """Every operation of the admin API, with its role."""
    yield "| operation | role | parameters | what it does |"
    yield "|---|---|---|---|"
    for one in OPERATIONS:
        may = f"{one.role}, all tenants" if one.fleetwide else one.role.value
        asked = ", ".join(f"`{name}`" for name in sorted(one.query))
        first = inspect.cleandoc(one.endpoint.__doc__ or "").partition("\n")[0]
        yield f"| `{one.method} {one.template}` | {may} | {asked} | {_cell(first)} |"


def _verbs(cli: typer.Typer, path: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in cli.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.name or command.callback.__name__.replace('_', '-')}", command.callback
    for group in cli.registered_groups:
        assert group.typer_instance is not None
        yield from _verbs(group.typer_instance, f"{path} {group.name}")


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, OptionInfo | ArgumentInfo]]:
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name not in ("ctx", "return"):
            infos = (m for m in getattr(hint, "__metadata__", ()) if isinstance(m, OptionInfo | ArgumentInfo))
            yield name, next(infos, ArgumentInfo())


def _is_argument(info: OptionInfo | ArgumentInfo) -> bool:
    return isinstance(info, ArgumentInfo)


def _row(name: str, info: OptionInfo | ArgumentInfo, function: Callable[..., Any]) -> str:
    default = inspect.signature(function).parameters[name].default
    shown = "required" if default is inspect.Parameter.empty else "" if default in (None, False) else f"`{default}`"
    if _is_argument(info):
        label = str(info.metavar or name.upper())
    else:
        # Inside Annotated, typer takes the first name that it is given for the default.
        names = [word for word in (info.default, *(info.param_decls or ())) if str(word).startswith("--")]
        flag = names[0] if names else f"--{name.replace('_', '-')}"
        takes = "" if default is False else " " + (info.metavar or _word(typing.get_type_hints(function)[name]))
        label = f"{flag}{takes}"
    return f"| `{_cell(label)}` | {shown} | {_cell(info.help or '')} |"


def _word(hint: Any) -> str:
    kinds = [t for t in typing.get_args(hint) if t is not types.NoneType] or [hint]
    return "NUMBER" if kinds[0] is int else kinds[0].__name__.upper() if kinds[0] is State else "TEXT"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def requirements() -> Iterator[str]:
    """Every requirement in a sentence, with the tests that prove it."""
    proofs = marked()
    for letter, family in families().items():
        yield f"## {letter}: {family['title']}\n\n{family['about']}\n"
        for subject, sentences in _subjects(family):
            yield f"### {subject}\n"
            for requirement, sentence in sentences.items():
                yield f"- **{requirement}** {sentence}"
                for file, tests in proofs.get(requirement, {}).items():
                    names = ", ".join(f"`{test}`" if test else "all tests" for test in tests)
                    yield f"  - [{file.stem}](../{file.as_posix()}): {names}"
            yield ""


def families() -> dict[str, Any]:
    return tomllib.loads((DOCS / "requirements.toml").read_text())


def sentences() -> dict[str, str]:
    """What each requirement asks for, by its ID."""
    return {
        requirement: sentence
        for family in families().values()
        for _, found in _subjects(family)
        for requirement, sentence in found.items()
    }


def _subjects(family: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    return ((subject, found) for subject, found in family.items() if isinstance(found, dict))


def marked() -> dict[str, dict[Path, list[str]]]:
    """The tests that a `req` mark ties to each requirement, by file; an empty name is the whole file's mark."""
    found: dict[str, dict[Path, list[str]]] = {}
    for path in sorted(path for folder in TESTS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        for requirement, test in _marks(ast.parse(text), "") if ".req(" in text else ():
            tests = found.setdefault(requirement, {}).setdefault(path.relative_to(ROOT), [])
            if test not in tests:
                tests.append(test)
    return found


def _marks(node: ast.AST, test: str) -> Iterator[tuple[str, str]]:
    """The IDs of all marks below a node, each with the function or class that it stands on."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        test = node.name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req":
        for argument in node.args:
            assert isinstance(argument, ast.Constant), f"line {node.lineno}: a req mark takes plain texts"
            yield argument.value, test
    for child in ast.iter_child_nodes(node):
        yield from _marks(child, test)


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "diagram": diagram,
    "transitions": transitions,
    "errors": error_classes,
    "commands": commands,
    "operations": operations,
    "requirements": requirements,
}


def generated(text: str) -> str:
    """A page with its generated parts as they should be."""
    return PART.sub(lambda part: part[1] + "\n" + "\n".join(PARTS[part[2]]()).rstrip() + "\n\n" + part[3], text)


def stale() -> list[Path]:
    """The pages whose generated parts are not what the code says."""
    return [page for page in sorted(DOCS.rglob("*.md")) if generated(page.read_text()) != page.read_text()]


def main() -> int:
    pages = stale()
    for page in pages:
        print(page.relative_to(DOCS.parent))
        if "--check" not in sys.argv:
            page.write_text(generated(page.read_text()))
    return 1 if pages and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
