"""`worker`: runs jobs until TERM or INT."""

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
import uuid_utils.compat

from dutiful.app import Dutiful
from dutiful.cli.options import LogFormat, LogLevel, adopt_log_format, set_up_logging
from dutiful.cli.target import target as chosen
from dutiful.client.client import Client
from dutiful.concurrency.daemon_pool import LoopThreads
from dutiful.core.errors import ShutdownTimeout, UsageError
from dutiful.declare.lane import LaneSettings
from dutiful.maintenance.rescuer import Rescuer
from dutiful.observe.outage import OutageLog
from dutiful.store import Store
from dutiful.worker.counters import AttemptCounters
from dutiful.worker.pulse import EVERY, Pulse
from dutiful.worker.startup import StartLimit
from dutiful.worker.supervisor import EXIT_LINGERING, WORKER_ID, Supervisor, child_command
from dutiful.worker.worker import Worker

if TYPE_CHECKING:
    from dutiful.arq_worker import ArqWorker

log = logging.getLogger("dutiful.worker")


def register(cli: typer.Typer) -> None:
    cli.command()(worker)


def worker(
    ctx: typer.Context,
    app_name: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="The app, as in myapp.jobs:app.", show_default=False)
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="A named set of settings: development, production, or one of your own.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many worker processes to run.")] = 1,
    fast: Annotated[int | None, typer.Option(min=0, help="Slots of the lane `fast`; 0 leaves it out.")] = None,
    general: Annotated[int | None, typer.Option(min=0, help="Slots of the lane `general`.")] = None,
    lane: Annotated[
        list[str] | None, typer.Option(help='A lane of your own, as in "reports=2:reports,exports"; may be repeated.')
    ] = None,
    kinds: Annotated[str | None, typer.Option(help="Only these kinds, separated by commas.")] = None,
    tenant: Annotated[
        list[str] | None, typer.Option(help="Only jobs of this tenant; may be repeated.", metavar="TENANT")
    ] = None,
    lease: Annotated[str | None, typer.Option(help="How long a claim holds unless renewed, as in 30s.")] = None,
    grace: Annotated[str | None, typer.Option(help="How long running jobs may take to finish at shutdown.")] = None,
    poll: Annotated[str | None, typer.Option(help="How often to look for jobs without a hint.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="How many jobs a lane claims at most at once.")] = None,
    startup_timeout: Annotated[
        str | None, typer.Option(help="How long to wait for a database that is away at the start; 0s: not at all.")
    ] = None,
    arq: Annotated[
        bool, typer.Option("--arq", help="Run only jobs that Arq delivers through Redis (setting redis_url).")
    ] = False,
    no_services: Annotated[bool, typer.Option("--no-services", help="Only run jobs, never lead.")] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Run jobs until TERM or INT; then finish running jobs within the grace period.

    A second INT interrupts running jobs (exit code 1), QUIT ends at once, TTIN prints the stacks of all threads.
    """
    set_up_logging(log_level, log_format)
    app = chosen(ctx).app(app_name)
    app.configure(profile=profile)
    app.configure(
        lanes=_lanes(app, fast, general, lane),
        kinds=kinds,
        claim_tenants=tenant or None,
        lease=lease,
        grace=grace,
        poll=poll,
        batch=batch,
        startup_timeout=startup_timeout,
    )
    adopt_log_format(app, log_format)
    if not app.kinds:
        raise UsageError("the app has no kinds; import the modules that define them where the app is made")
    _run(_exit_after(_supervise(app, processes) if processes > 1 else _serve(app, services=not no_services, arq=arq)))


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _exit_after(work: Coroutine[Any, Any, int]) -> None:
    code = await work
    # At once: closing the event loop would wait for handlers and threads that do not stop.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _serve(app: Dutiful, *, services: bool, arq: bool = False) -> int:
    given = os.environ.pop(WORKER_ID, None)  # a worker that a handler starts is another one
    if given:
        threading.Thread(target=_live_with, args=(os.getppid(), Pulse()), daemon=True).start()
    silence = app.settings.lease + app.settings.watchdog
    limit = StartLimit(app.settings.startup_timeout)
    stacks = nullcontext() if given else _printing_stacks_after(silence.total_seconds())
    async with stacks, _opened(app, limit) as client:
        worker = _make_worker(app, client, arq, services, UUID(given) if given else None)
        _handle_signals(worker)
        asyncio.get_running_loop().set_default_executor(LoopThreads(worker.thread_left))
        lanes = ", ".join(f"{lane.name} {lane.slots}" for lane in app.settings.lanes)
        profile = f"; profile {app.settings.profile}" if app.settings.profile else ""
        whose = f"; of {', '.join(app.settings.claim_tenants)} only" if app.settings.claim_tenants else ""
        kinds = len(app.settings.kinds or app.kinds)
        source = "; jobs come from Redis" if arq else ""
        summary = f"lanes {lanes}; {kinds} {'kind' if kinds == 1 else 'kinds'}{whose}{profile}{source}"
        log.info("worker %s on %s: %s", os.getpid(), client.store.url, summary)
        # What is alive now lives as long as this process. Otherwise each full collection looks at all of it, and no job
        # starts meanwhile: for 10 ms, or more if the app is large.
        gc.collect()
        gc.freeze()
        try:
            await worker.run(limit)
        except ShutdownTimeout as error:
            log.warning("%s", error)
            return 1
        finally:
            if client.tracer is not None:
                await asyncio.to_thread(client.tracer.flush)
        if worker.replaced:
            log.warning("worker %s stopped, because handlers linger in it; no job was left running", os.getpid())
            return EXIT_LINGERING
        log.info("worker %s stopped; no job was left running", os.getpid())
        return 0


def _make_worker(
    app: Dutiful, client: Client, arq: bool, services: bool, worker_id: UUID | None
) -> "Worker | ArqWorker":
    if not arq:
        return app.make_worker(client, services=services, worker_id=worker_id)
    try:
        from dutiful.arq_worker import make_arq_worker
    except ImportError as error:
        raise UsageError(f"--arq needs an extra ({error}): pip install 'dutiful[arq]'") from error
    # Arq logs each message, at the level at which Dutiful logs the life of a worker.
    logging.getLogger("arq").setLevel(max(logging.WARNING, logging.getLogger("dutiful").level))
    return make_arq_worker(app, client, services=services, worker_id=worker_id)


@asynccontextmanager
async def _opened(app: Dutiful, limit: StartLimit) -> AsyncIterator[Client]:
    """The app's client, once the database lets it be opened."""
    async with AsyncExitStack() as stack:
        client = await limit.wait_for(lambda: stack.enter_async_context(app.opened()), OutageLog())
        assert client is not None  # nothing stops the wait
        yield client


def _live_with(supervisor: int, pulse: Pulse) -> None:
    """Gives its supervisor signs of life. Stops this worker when that was killed; a new one starts its own workers."""
    # The signs tell of a supervisor that was killed before we asked for our parent.
    while os.getppid() == supervisor and pulse.beat():
        time.sleep(EVERY)
    os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def _printing_stacks_after(silence: float) -> AsyncIterator[None]:
    """Has the stacks printed when no thread of this process has run for so many seconds."""
    ended = threading.Event()

    def postpone() -> None:
        faulthandler.dump_traceback_later(silence, file=2)  # waits in C: a handler may keep the interpreter lock
        while not ended.wait(EVERY):
            faulthandler.dump_traceback_later(silence, file=2)

    thread = threading.Thread(target=postpone, name="dutiful stacks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()


def _handle_signals(worker: "Worker | ArqWorker") -> None:
    loop = asyncio.get_running_loop()
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            log.info("stopping: running jobs may finish; interrupt again to stop them")
            worker.stop()
        else:
            worker.abort()

    def stop() -> None:
        log.info("stopping: running jobs may finish")
        worker.stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGQUIT, lambda: worker.abort(cleanup=0.0))
    # In C, so that it works even while a handler blocks the event loop.
    faulthandler.register(signal.SIGTTIN, all_threads=True)


async def _supervise(app: Dutiful, processes: int) -> int:
    # Fails here, once, if the database is unusable.
    async with _opened(app, StartLimit(app.settings.startup_timeout)) as client:
        client.store.check_worker()
        counters, supervisor_id = AttemptCounters(), uuid_utils.compat.uuid7()
        rescuer = Rescuer(client.store, app.kinds, on_rescue=counters.rescued)

        async def rescue(worker_id: UUID) -> None:
            held = await client.store.claims.held_by(worker_id)
            if held:
                await rescuer.rescue(held)
                client.delivery.hint(frozenset())
            await client.store.workers.remove(worker_id)
            if app.settings.metrics:
                await counters.flush(client.store.metrics, supervisor_id)

        async def is_stuck(worker_id: UUID, silent: float) -> bool:
            return await _is_stuck(app, client.store, worker_id, silent)

        return await Supervisor(child_command(_single(sys.argv[1:])), processes, rescue, is_stuck).run()


async def _is_stuck(app: Dutiful, store: Store, worker_id: UUID, silent: float) -> bool:
    """Whether it is past the timeouts of all jobs that it holds, or past its leases, so that it holds none."""
    watchdog, lease = app.settings.watchdog.total_seconds(), app.settings.lease.total_seconds()
    if silent < watchdog:
        return False
    held = await store.claims.held_by(worker_id)
    if not held:
        # One that still opens its resources, as by loading a model, has no leases; its heartbeat comes after.
        begun = any(worker.id == worker_id for worker in await store.workers.all())
        return begun and silent >= lease + watchdog
    if silent >= 2 * lease + watchdog:
        return True  # no worker has taken its jobs over, and none ever will if all are stuck
    limits = [app.kinds[one.kind].timeout if one.kind in app.kinds else None for one in held]
    # Which of them keeps the interpreter is not known: its call may take as long as its own timeout says. It has
    # claimed nothing since, so each of them has run, or waited here, for longer.
    return all(limit is not None and silent >= limit.total_seconds() + watchdog for limit in limits)


def _single(arguments: list[str]) -> list[str]:
    """The arguments without --processes."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--processes":
            skip = True
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept


def _lanes(
    app: Dutiful, fast: int | None, general: int | None, own: list[str] | None
) -> tuple[LaneSettings, ...] | str | None:
    if own and (fast is not None or general is not None):
        raise UsageError("--lane replaces all lanes: give those of --fast and --general by --lane as well")
    if own:
        return ";".join(own)
    if fast is None and general is None:
        return None
    slots = {"fast": fast, "general": general}
    lanes = ((lane, slots.get(lane.name)) for lane in app.settings.lanes)
    return tuple(lane if given is None else replace(lane, slots=given) for lane, given in lanes if given != 0)
