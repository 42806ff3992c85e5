"""`sql-worker`: runs SQL functions and channels until TERM or INT, with a login that touches no table."""

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from typing import Annotated

import typer
import uuid_utils.compat

from dutiful.channels import Channels
from dutiful.channels.sql_worker import SqlWorker, SqlWorkerConfig
from dutiful.cli.options import LogFormat, LogLevel, set_up_logging
from dutiful.cli.target import import_object, target
from dutiful.core.duration import duration
from dutiful.core.errors import ShutdownTimeout, UsageError
from dutiful.core.json import check_name
from dutiful.factory import make_sql_worker
from dutiful.observe import logs
from dutiful.settings import Settings, load
from dutiful.worker.startup import StartLimit

log = logging.getLogger("dutiful.channels")


def register(cli: typer.Typer) -> None:
    cli.command("sql-worker")(sql_worker)


def sql_worker(
    ctx: typer.Context,
    channels_name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:CHANNELS]", help="Channels of your own, as in comms:channels.", show_default=False
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many jobs run at once.")] = 10,
    queue: Annotated[list[str] | None, typer.Option(help="Only this queue; may be repeated.", metavar="QUEUE")] = None,
    lease: Annotated[
        str, typer.Option(help="How long a claim holds unless renewed; a function may take 80 % of it.")
    ] = "5m",
    grace: Annotated[str | None, typer.Option(help="How long running jobs may take to finish at shutdown.")] = None,
    poll: Annotated[str | None, typer.Option(help="How often to look for jobs without a hint.")] = None,
    startup_timeout: Annotated[
        str | None, typer.Option(help="How long to wait for a database that is away at the start; 0s: not at all.")
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Run the SQL functions that jobs name, and the channels that they ask for, until TERM or INT.

    It needs a login in the group dutiful_sql_worker, and no right to any table. It runs jobs of the kind db_function,
    and of every channel that has a provider: email, sms and file_delete if their settings are given, and your own.

    \b
    Examples:
      dutiful sql-worker
      dutiful sql-worker comms:channels --concurrency 20
    """
    set_up_logging(log_level, log_format)
    settings = load(
        {
            "database_url": target(ctx).database_url,
            "grace": grace,
            "poll": poll,
            "startup_timeout": startup_timeout,
            "log_format": log_format,
            "profile": "",  # only an app may know it
        }
    )
    logs.reformat(settings.log_format)
    channels = _channels(channels_name, settings)
    for name in queue or ():
        check_name(name, "--queue")  # an empty one, as of a variable that is not set, would serve nothing
    config = SqlWorkerConfig(
        worker_id=uuid_utils.compat.uuid7(),
        concurrency=concurrency,
        lease=_lease(lease),
        grace=settings.grace,
        poll=settings.poll,
        queues=queue,
    )
    worker = make_sql_worker(settings, channels, config)
    asyncio.run(_serve(worker, StartLimit(settings.startup_timeout)))


def _lease(text: str) -> timedelta:
    length = duration(text, "--lease")
    if not timedelta(seconds=1) <= length <= timedelta(days=1):
        raise UsageError(f"--lease {text!r} must be from 1s to 1d: it is renewed while a job runs")
    return length


def _channels(name: str | None, settings: Settings) -> Channels:
    """Those of the user's module, and the built-in ones that are configured."""
    channels = Channels() if name is None else import_object(name, "channels", Channels)
    channels.add_configured(settings)
    return channels


async def _serve(worker: SqlWorker, limit: StartLimit) -> None:
    _handle_signals(worker)
    log.info("SQL worker %s on %s serves %s", os.getpid(), worker.url, ", ".join(worker.kinds))
    code = 0
    try:
        await worker.run(limit)
        log.info("SQL worker %s stopped; no job was left running", os.getpid())
    except ShutdownTimeout as error:
        log.warning("%s", error)
        code = 1
    # At once: providers that do not end are not waited for.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _handle_signals(worker: SqlWorker) -> None:
    loop = asyncio.get_running_loop()
    interrupts = 0

    def stop() -> None:
        log.info("stopping: running jobs may finish")
        worker.stop()

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            log.info("stopping: running jobs may finish; interrupt again to give them back")
            worker.stop()
        else:
            worker.abort()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)
