"""`events`: follow what happens to jobs."""

import sys
from typing import Annotated, Any

import typer

from dutiful.cli.output.printing import json_line, plain
from dutiful.cli.target import run
from dutiful.client.client import Client
from dutiful.core import ids
from dutiful.core.events import Event, EventType
from dutiful.core.job import JobRecord
from dutiful.events import Gap, Item, Snapshot, Subscription
from dutiful.events.items import item_json

LONGEST_DETAIL = 120


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Jobs")(events)


def events(
    ctx: typer.Context,
    job: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this job, its present state first; may be repeated.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only jobs of this kind; may be repeated.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="Only jobs of this queue; may be repeated.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only jobs of this tenant.")] = None,
    type_: Annotated[
        list[EventType] | None, typer.Option("--type", help="Only events of this type; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line, for programs.")] = False,
) -> None:
    """Follow what happens to jobs, until INT (Ctrl-C).

    \b
    Examples:
      dutiful events
      dutiful events --job 01JCPZ5-…
      dutiful events --kind send_email --type failed --json
    """
    jobs = frozenset(ids.parse_any(text) for text in job) if job else None
    wanted = Subscription.read(jobs, kind or None, queue or None, tenant, None, type_ or None)
    run(ctx, lambda client: _follow(client, wanted, as_json=as_json))


async def _follow(client: Client, wanted: Subscription, *, as_json: bool) -> None:
    async with client.watcher.subscribe(wanted) as stream:
        async for item in stream:
            line = json_line(item_json(item)) if as_json else _line(item)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()  # a reader at the other end of a pipe needs it now


def _line(item: Item) -> str:
    match item:
        case Event():
            return _columns(f"{item.at:%H:%M:%S}", item.type, ids.public(item.job_id), item.kind, _detail(item))
        case Snapshot(job=job):
            return _columns(f"{job.created_at:%H:%M:%S}", item.type, ids.public(job.id), job.kind, _snapshot(job))
        case Gap():
            return _columns(f"{item.since:%H:%M:%S}", item.type, "some events were missed", "", "")


def _columns(at: str, type_: str, job: str, kind: str, detail: str) -> str:
    return plain(f"{at}  {type_:<17}  {job}  {kind}  {detail}".rstrip().replace("\n", " "))


def _snapshot(job: JobRecord) -> str:
    return f"{job.state}, attempt {job.attempt} of {job.max_attempts}"


def _detail(event: Event) -> str:
    data = event.data
    match event.type:
        case EventType.PROGRESS:
            parts = [data.get("phase"), _percent(data.get("percent")), data.get("message")]
        case EventType.PHASE_COMPLETED:
            parts = [data["phase"]]
        case EventType.RETRYING:
            parts = [data["outcome"], _error(data.get("error"))]
        case EventType.COMPLETED | EventType.FAILED | EventType.CANCELLED:
            parts = [data["state"] if data["state"] != event.type else None, *map(_error, data["errors"][:1])]
        case EventType.WEBHOOK_DELIVERED | EventType.WEBHOOK_FAILED:
            parts = [data["url"], data.get("error")]
        case EventType.STARTED:
            parts = [f"attempt {data['attempt']}"]
        case _:
            parts = []
    text = ", ".join(str(part) for part in parts if part)
    return text if len(text) <= LONGEST_DETAIL else f"{text[:LONGEST_DETAIL]}…"


def _percent(percent: float | None) -> str | None:
    return None if percent is None else f"{percent:g} %"


def _error(error: dict[str, Any] | None) -> str | None:
    return None if error is None else f"{error.get('type')}: {error.get('message')}"
