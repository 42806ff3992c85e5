"""`supervisor`: writes the SQL of supervised processes, lists and explains them."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli.options import NEGATIVE, AsJson
from dutiful.cli.output.printing import (
    both_ids,
    note,
    print_facts,
    print_json,
    print_table,
    say,
    when,
)
from dutiful.cli.target import operate, target
from dutiful.core import ids
from dutiful.core.duration import brief, duration
from dutiful.core.errors import DutifulError, UsageError
from dutiful.operator import Operator
from dutiful.operator.supervisors import ProcessDetails, ProcessLines, supervisor_json
from dutiful.store.supervisors import ProcessAttempt, Supervisor

supervisor = typer.Typer(help="Write the SQL of supervised processes, list and explain them.", no_args_is_help=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(supervisor, name="supervisor", rich_help_panel="Set up")


@supervisor.command()
def new(
    ctx: typer.Context,
    process: Annotated[str, typer.Argument(metavar="SCHEMA.NAME", help="The process, as in comms.send_email.")],
    channel: Annotated[
        str, typer.Option(help="Who does the work: email, sms, file_delete, a channel of yours, or db_function.")
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="What a process is about; again for a key of several columns."),
    ] = None,
    references: Annotated[
        list[str] | None,
        typer.Option(metavar="[KEY=]SCHEMA.TABLE(COLUMN)", help="The row that a key names, which has to exist."),
    ] = None,
    max_attempts: Annotated[int, typer.Option(help="Failed attempts that end the process.")] = 3,
    base: Annotated[str, typer.Option(metavar="TIME", help="Until the first check; doubled by each failure.")] = "10s",
    before: Annotated[
        str | None, typer.Option(metavar="FUNCTION", help="The before handler [get_NAME_payload].")
    ] = None,
    success: Annotated[
        str | None, typer.Option(metavar="FUNCTION", help="The success handler [record_NAME_success].")
    ] = None,
    error: Annotated[
        str | None, typer.Option(metavar="FUNCTION", help="The error handler [record_NAME_failure].")
    ] = None,
    work: Annotated[
        str | None, typer.Option(metavar="FUNCTION", help="With db_function: what does the work [NAME].")
    ] = None,
    final_table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Holds processes that have failed [NAME_task_failed].")
    ] = None,
    worker_role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="Whose logins run the jobs [dutiful_sql_worker].")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file; otherwise stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a migration: tables, facts, supervisor, kickoff and handlers of a supervised process.

    It connects to nothing. Run the migration in one transaction, as a role in the group dutiful_client. It can be
    run again, also after it was generated anew, and leaves your handlers as they are.

    \b
    Examples:
      dutiful supervisor new comms.send_email --channel email --references 'comms.email_message(email_message_id)'
      dutiful supervisor new accounts.rebuild_summary --channel db_function --key account_id:bigint -o summary.sql
    """
    try:
        from dutiful.stores.postgres.supervisor_migration import migration
        from dutiful.stores.postgres.supervisor_plan import plan
    except ImportError as missing:
        raise UsageError(f"Postgres needs an extra ({missing}): pip install 'dutiful[postgres]'") from missing
    planned = plan(
        process,
        channel=channel,
        keys=key or (),
        references=references or (),
        max_attempts=max_attempts,
        base=duration(base, "--base"),
        before=before,
        success=success,
        error=error,
        work=work,
        final_table=final_table,
        worker_role=worker_role,
        schema=target(ctx).any_app().settings.schema,
    )
    text = migration(planned)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"--output {output} exists, perhaps with handlers of yours: name another, or --force"
        ) from None
    except OSError as failed:
        raise UsageError(f"--output {output}: the file cannot be written: {failed.strerror}") from failed
    note(f"wrote {output}: run it in one transaction, as in psql -1 -f {shlex.quote(str(output))}")


@supervisor.command("list")
def list_supervisors(
    ctx: typer.Context,
    process: Annotated[
        str | None, typer.Argument(metavar="[SCHEMA.NAME]", help="List the processes of this supervisor.")
    ] = None,
    stuck: Annotated[
        bool, typer.Option("--stuck", help="Only processes that failed, or that no check is queued for.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most processes to list, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the supervisors of the database, or the newest processes of one.

    \b
    Examples:
      dutiful supervisor list
      dutiful supervisor list comms.send_email --stuck
    """
    if process is not None:
        _list_processes(operate(ctx, lambda operator: _processes(operator, process, stuck, limit)), as_json)
        return
    if stuck:
        raise UsageError("--stuck is about processes: name their supervisor, as in comms.send_email")
    found = operate(ctx, lambda operator: operator.supervisors.all())
    if as_json:
        print_json({"supervisors": [supervisor_json(one) for one in found]})
        return
    print_table(
        ("supervisor", "channel", "attempts#", "base", "keys", "running#", "failed#", "succeeded#"),
        (_supervisor_row(one) for one in found),
        empty="no supervisors: `dutiful supervisor new` writes one",
    )
    if hidden := [one.name for one in found if one.running is None]:
        note(f"this role may not read the tables of: {', '.join(hidden)}")
    if cut := [one.name for one in found if not one.counted_all]:
        note(f"only the newest processes were counted of: {', '.join(cut)}")


@supervisor.command(context_settings=NEGATIVE)
def show(
    ctx: typer.Context,
    process: Annotated[str, typer.Argument(metavar="SCHEMA.NAME", help="The supervisor, as in comms.send_email.")],
    task_id: Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The id of its task.")],
    as_json: AsJson = False,
) -> None:
    """Explain a process: its facts in the order of time, its attempts with their jobs, and whether and why it is stuck.

    \b
    Examples:
      dutiful supervisor show comms.send_email 7
    """

    async def find(operator: Operator) -> ProcessDetails:
        found = await operator.supervisors.find(process, task_id)
        if found is None:
            known = await operator.supervisors.all()
            raise DutifulError(f"there is no process {task_id} of {process}; {_known(known)}")
        return found

    found = operate(ctx, find)
    if as_json:
        print_json(_process_json(found))
        return
    _show_process(found)


async def _processes(operator: Operator, name: str, stuck: bool, limit: int) -> ProcessLines:
    found = await operator.supervisors.processes(name, stuck=stuck, limit=limit)
    if found is None:
        raise DutifulError(f"there is no supervisor {name}; {_known(await operator.supervisors.all())}")
    return found


def _known(found: list[Supervisor]) -> str:
    return f"there are the supervisors: {', '.join(one.name for one in found) or 'none'}"


def _supervisor_row(one: Supervisor) -> tuple[object, ...]:
    return (
        one.name,
        one.channel,
        one.max_attempts,
        brief(one.base),
        ", ".join(one.keys),
        one.running,
        one.failed,
        one.succeeded,
    )


def _list_processes(found: ProcessLines, as_json: bool) -> None:
    if as_json:
        lines = [
            {**msgspec.structs.asdict(line.process), "state": line.state, "stuck": line.stuck} for line in found.lines
        ]
        print_json({"processes": lines, "searched_all": found.searched_all})
        return
    print_table(
        ("id", "state", "about", "started", "attempts#", "failures#", "error"),
        (
            (
                str(line.process.task_id),
                line.state.value,
                _about(line.process.keys),
                when(line.process.created_at),
                line.process.attempts,
                line.process.failures,
                line.process.final_error,
            )
            for line in found.lines
        ),
        empty="no such processes",
    )
    if not found.searched_all:
        note("only the newest of the processes that have not succeeded were searched")


def _about(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in keys.items())


def _show_process(found: ProcessDetails) -> None:
    process, check = found.process, found.next_check
    print_facts(
        {
            "process": f"{process.supervisor.name} {process.task_id}",
            "about": _about(process.keys),
            "state": found.state.value,
            "stuck": "yes" if found.stuck else "no",
            "why": found.why,
            "next check": None
            if check is None
            else f"{when(check.run_at) or 'now'}, job {ids.public(check.job_id)}, {check.state}",
            "remedy": found.remedy,
        }
    )
    say("")
    print_table(
        ("time", "fact", "job"),
        ((when(fact.at), fact.what, None if fact.job_id is None else ids.public(fact.job_id)) for fact in found.facts),
        empty="no facts",
        whole=True,
    )
    say("")
    print_table(
        ("attempt", "outcome", "job", "state", "error"),
        (
            (str(one.attempt_id), _outcome(one), ids.public(one.job_id), one.job_state or "gone", _error(one))
            for one in process.attempts
        ),
        empty="no attempts yet",
        whole=True,
    )


def _outcome(one: ProcessAttempt) -> str:
    return "succeeded" if one.succeeded_at else "failed" if one.failed_at else "outstanding"


def _error(one: ProcessAttempt) -> str | None:
    return one.error_message or one.job_error


def _process_json(found: ProcessDetails) -> dict[str, Any]:
    process = found.process
    attempts = [
        {**both_ids("job_id", one.job_id), **{k: v for k, v in msgspec.structs.asdict(one).items() if k != "job_id"}}
        for one in process.attempts
    ]
    check = found.next_check
    return {
        "supervisor": process.supervisor.name,
        "task_id": process.task_id,
        "keys": process.keys,
        "created_at": process.created_at,
        "state": found.state,
        "stuck": found.stuck,
        "why": found.why,
        "remedy": found.remedy,
        "facts": [{"at": fact.at, "what": fact.what, **both_ids("job_id", fact.job_id)} for fact in found.facts],
        "attempts": attempts,
        "outstanding": None if found.outstanding is None else found.outstanding.attempt_id,
        "next_check": None
        if check is None
        else {**both_ids("job_id", check.job_id), "state": check.state, "run_at": check.run_at},
    }
