"""`enqueue`: enqueue a job from the command line."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli import FAILURE
from dutiful.cli.options import AsJson, Reason, read_payload, read_time
from dutiful.cli.output.printing import job_json, note, print_json, say
from dutiful.cli.target import target, this_user
from dutiful.client.client import JobHandle
from dutiful.core import ids
from dutiful.core.duration import duration
from dutiful.core.errors import JobCancelled, JobFailed, ResultTimeout, UsageError
from dutiful.core.job import OnFailure, Scope, Unique
from dutiful.core.maintenance_window import MaintenanceWindow, first_outside
from dutiful.core.sealed import shown_record
from dutiful.kind import Kind


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Jobs")(enqueue)


def enqueue(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind's name.")],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="The payload; values are JSON or plain text.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="The whole payload as JSON, from a file, or from stdin.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Instead of the kind's own queue.")] = None,
    priority: Annotated[int | None, typer.Option(help="From 0, lower runs first.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Run it after this time: 30s, 5m, 1h30m, 7d.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Run it then: 2030-01-31T09:00+02:00, 2030-01-31T07:00Z.")
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Only one live job of the kind has this key; if there is one, its id is printed."
        ),
    ] = None,
    unique_for: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|SCOPE",
            help="How long the key is held: queued, active (until the job has ended; the default), forever, or 7d.",
        ),
    ] = None,
    not_during: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WINDOW",
            help='Make it due after this maintenance window, as in "0 1 * * SUN for 4h"; may be repeated.',
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant that owns the job.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Groups related jobs, for searching.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="How often it may be tried, including the first time.")
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Run it when this job has completed; may be repeated."),
    ] = None,
    on_failure: Annotated[
        OnFailure | None,
        typer.Option(help="What happens to it if one of --depends-on fails or is cancelled: cancel, the default."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and print its result.")] = False,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Wait no longer than this.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue a job, and print its id; it runs nothing itself.

    The payload is checked against the kind's function. A value that is JSON is read as JSON (count=3, on=true,
    tags='["a"]'), anything else as text. To repeat the command safely after an error, give --unique and --unique-for.

    \b
    Examples:
      dutiful enqueue greet name=Ada
      dutiful enqueue greet name=Ada --delay 5m --priority 10
      dutiful enqueue import_file --payload @big.json --unique monday
      dutiful enqueue greet name=Ada --wait --timeout 30s
      dutiful enqueue cleanup --unique nightly-2030-01-31 --unique-for 7d
      dutiful enqueue report --depends-on 01JCPZ5-… --on-failure run
    """
    app = target(ctx).app()
    chosen = app.kind(kind)
    limit = None if timeout is None else duration(timeout, "--timeout")
    body = _payload(chosen, pairs or [], payload)
    options: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "run_at": _run_at(run_at),
        "unique": _unique(unique, unique_for),
        "tenant": tenant,
        "correlation_id": correlation_id,
        "max_attempts": max_attempts,
        "depends_on": [ids.parse_any(one) for one in depends_on] if depends_on else None,
        "on_failure": on_failure,
    }
    given = _outside(not_during or [], {name: value for name, value in options.items() if value is not None})

    async def session() -> bool:
        async with app:
            operator = await app.operator(this_user())
            stored = await operator.jobs.enqueue(kind, body, reason, **given)
            handle: JobHandle[Any] = JobHandle(stored.job_id, stored.made, await app.client())
            if not as_json:
                say(handle.public_id)
            if not handle.created:
                note("a job with this unique key exists already; no new one was enqueued")
            ended, result = await _result(handle, limit) if wait else (True, None)
            # Nothing is read that is not printed: the job is stored, so no error may say otherwise.
            if as_json:
                record = await (await app.client()).find(handle.id)  # a key may be held longer than its job is kept
                shown = (
                    {"id": handle.public_id, "uuid": str(handle.id)}
                    if record is None
                    else job_json(shown_record(record))
                )
                print_json({**shown, "created": handle.created})
            elif wait and ended:
                print_json(result)
            return ended

    if not asyncio.run(session()):
        raise typer.Exit(FAILURE)


async def _result(handle: JobHandle[Any], limit: Any) -> tuple[bool, Any]:
    """Whether the job succeeded, and its result; otherwise prints why not."""
    try:
        return True, await handle.result(limit)
    except (JobFailed, JobCancelled, ResultTimeout) as error:
        note(f"dutiful: {error}")
        return False, None


def _payload(kind: Kind[Any, Any], pairs: list[str], whole: str | None) -> dict[str, Any]:
    if whole is None:
        return _from_pairs(kind, pairs)
    if pairs:
        raise UsageError("give the payload as key=value pairs or with --payload, not both")
    return read_payload(whole)


def _from_pairs(kind: Kind[Any, Any], pairs: list[str]) -> dict[str, Any]:
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{pair!r} is not a key=value pair, as in name=Ada")
        if name in texts:
            raise UsageError(f"{name} is given twice")
        texts[name] = text
    payload = {name: _value(text) for name, text in texts.items()}
    for _ in texts:
        # phone=12345 is a number in JSON, but a text if the kind asks for one.
        numbers = [error.field for error in kind.problems(payload) if not isinstance(payload.get(error.field, ""), str)]
        wrong = {field: kind.problems({**payload, field: texts[field]}) for field in numbers}
        fixed = [field for field, errors in wrong.items() if all(error.field != field for error in errors)]
        if not fixed:
            break
        payload[fixed[0]] = texts[fixed[0]]
    return payload


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _run_at(text: str | None) -> datetime | None:
    try:
        return None if text is None else read_time(text, "--run-at")
    except ValueError:
        raise UsageError(f"--run-at {text!r} is not a time; write it as 2030-01-31T09:00+02:00") from None


def _unique(key: str | None, held: str | None) -> Unique | None:
    if key is None:
        if held is not None:
            raise UsageError("--unique-for says how long a key is held: give the key with --unique")
        return None
    scopes = {scope.value: scope for scope in Scope if scope is not Scope.WINDOW}
    if held is None or held in scopes:
        return Unique(key, Scope.ACTIVE if held is None else scopes[held])
    try:
        return Unique(key, Scope.WINDOW, window=duration(held, "--unique-for"))
    except UsageError:
        raise UsageError(
            f"--unique-for {held!r:.80} must be one of {', '.join(scopes)}, or a length of time as in 7d"
        ) from None


def _outside(texts: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """The options, with another time if the job would become due in a maintenance window."""
    windows = [MaintenanceWindow.parse(text) for text in texts]
    if not windows or {"delay", "run_at"} <= options.keys():  # both together are refused later
        return options
    due = options.get("run_at") or datetime.now(UTC) + duration(options.get("delay", 0), "delay")
    if (later := first_outside(windows, due)) == due:
        return options
    note(f"that is in a maintenance window; the job is due at its end, {later:%Y-%m-%d %H:%M:%S} UTC")
    return {name: value for name, value in options.items() if name != "delay"} | {"run_at": later}
