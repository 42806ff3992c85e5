"""`enqueue`: enqueue a job from the command line."""

import asyncio
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli import FAILURE
from dutiful.cli.options import AsJson, Reason, read_payload, read_time
from dutiful.cli.output.printing import job_json, note, print_json, say
from dutiful.cli.target import target, this_user
from dutiful.client.client import JobHandle
from dutiful.core.duration import duration
from dutiful.core.errors import JobCancelled, JobFailed, ResultTimeout, UsageError
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
    tenant: Annotated[str | None, typer.Option(help="The tenant that owns the job.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Groups related jobs, for searching.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="How often it may be tried, including the first time.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and print its result.")] = False,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Wait no longer than this.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue a job, and print its id.

    The payload is checked against the kind's function. A value that is JSON is read as JSON (count=3, on=true,
    tags='["a"]'), anything else as text.

    \b
    Examples:
      dutiful enqueue greet name=Ada
      dutiful enqueue greet name=Ada --delay 5m --priority 10
      dutiful enqueue import_file --payload @big.json --unique monday
      dutiful enqueue greet name=Ada --wait --timeout 30s
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
        "unique": unique,
        "tenant": tenant,
        "correlation_id": correlation_id,
        "max_attempts": max_attempts,
    }
    given = {name: value for name, value in options.items() if value is not None}

    async def session() -> bool:
        async with app:
            operator = await app.operator(this_user())
            stored = await operator.jobs.enqueue(kind, body, reason, **given)
            handle: JobHandle[Any] = JobHandle(stored.job_id, stored.made, await app.client())
            if not as_json:
                say(handle.public_id)
            if not handle.created:
                note("a job with this unique key exists already; no new one was enqueued")
            ended = not wait or await _ended(handle, limit)
            record = await handle.record()
            if as_json:
                print_json({**job_json(record), "created": handle.created})
            elif wait and ended:
                print_json(record.result)
            return ended

    if not asyncio.run(session()):
        raise typer.Exit(FAILURE)


async def _ended(handle: JobHandle[Any], limit: Any) -> bool:
    """Whether the job succeeded; otherwise prints why not."""
    try:
        await handle.result(limit)
    except (JobFailed, JobCancelled, ResultTimeout) as error:
        note(f"dutiful: {error}")
        return False
    return True


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
