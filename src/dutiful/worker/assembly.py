"""Assembles the parts of a worker, and opens those that have to be closed."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dutiful.core.errors import UsageError
from dutiful.declare.breaker import breaker_policy
from dutiful.kind import Kind, Mode
from dutiful.payload.key_ring import no_keys
from dutiful.worker.breakers.client import BreakerClient, BreakerDeclaration
from dutiful.worker.config import WorkerConfig
from dutiful.worker.executor.attempt import Executor, ThreadPool, TracedExecutor
from dutiful.worker.executor.context import AttemptDeps
from dutiful.worker.executor.parents import ParentReader
from dutiful.worker.executor.processes import ProcessPool
from dutiful.worker.executor.progress import ProgressWriter
from dutiful.worker.executor.step_writer import StepWriter
from dutiful.worker.heartbeat import Heartbeat
from dutiful.worker.lanes.fetcher import FetchCursors, Suspects
from dutiful.worker.lanes.lane import Lane
from dutiful.worker.lanes.lending import Lending
from dutiful.worker.lanes.poller import Poller
from dutiful.worker.lanes.selection import select
from dutiful.worker.leases import LeaseRenewalThread, Leases
from dutiful.worker.locks.manager import LockManager, LockModeCheck
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slots


@dataclass(frozen=True, slots=True)
class WorkerParts:
    lanes: list[Lane]
    settler: Settler
    renewal: LeaseRenewalThread
    poller: Poller
    heartbeat: Heartbeat
    mode_check: LockModeCheck
    declaration: BreakerDeclaration


async def assemble(stack: AsyncExitStack, config: WorkerConfig, slots: Slots) -> WorkerParts:
    """Makes all parts of a worker and adds its slots; opened parts are closed with `stack`."""
    settings = config.settings
    started_at = datetime.now(UTC)  # before resources, which may take a while to open
    mode_check = LockModeCheck(config.store, config.worker_id)
    threads = sum(lane.slots for lane in settings.lanes)
    executor = await open_executor(stack, config, threads, settings.cpu_processes, mode_check)
    leases, suspects = Leases(), Suspects()
    selections = [select(config, lane) for lane in settings.lanes]
    cursors = {selection: FetchCursors() for selection in dict.fromkeys(selections)}
    settler = Settler(
        config.store.claims,
        config.kinds,
        leases,
        config.uniform,
        config.counters,
        config.delivery,
        config.maintenance,
        config.tracer,
        config.outages,
        config.store.limits,
    )
    config.outages.waiting = lambda: f"{settler.pending} outcomes wait, {len(leases.snapshot())} jobs are held"
    lanes = [
        Lane(config, lane, cursors[selection], leases, suspects, executor, settler, slots)
        for lane, selection in zip(settings.lanes, selections, strict=True)
    ]
    if any(lane.settings.lend for lane in lanes):
        lending = Lending(lanes)
        for lane in lanes:
            lane.lending = lending
    renewal = LeaseRenewalThread(config, leases, slots, executor.current)
    declaration = BreakerDeclaration(config)
    heartbeat = Heartbeat(config, lanes, slots, mode_check, declaration, started_at)
    return WorkerParts(lanes, settler, renewal, Poller(config, cursors, lanes), heartbeat, mode_check, declaration)


async def open_executor(
    stack: AsyncExitStack,
    config: WorkerConfig,
    threads: int,
    processes: int,
    mode_check: LockModeCheck | None = None,
) -> Executor:
    """Makes the executor and all that handlers use; closed with `stack`."""
    store, settings, tracer = config.store, config.settings, config.tracer
    limits = settings.result_limit, settings.error_message_limit
    thread_pool = ThreadPool(threads)
    stack.callback(thread_pool.close)
    process_pool = ProcessPool(processes, limits, None if tracer is None else tracer.carrier)
    stack.callback(process_pool.close)
    resources = await open_resources(stack, config.resources, config.kinds.values())
    locks = LockManager(store.locks, settings.lock_connections, mode_check)
    stack.push_async_callback(locks.close)
    breakers = BreakerClient(store.breakers, config.breakers, breaker_policy(settings))
    stack.push_async_callback(breakers.close)
    progress = ProgressWriter(store.progress, config.delivery.notify_watchers)
    stack.callback(progress.close)
    steps = StepWriter(store.steps, max(threads, 1))
    stack.callback(steps.close)
    encrypted, ring = frozenset(name for name, kind in config.kinds.items() if kind.encrypted), config.key_ring
    if encrypted and ring is None:
        raise no_keys(f"kind {min(encrypted)} is encrypted")
    parents = ParentReader(store.queries, store.dependents, ring)
    grace = settings.timeout_grace.total_seconds()
    deps = AttemptDeps(
        store.claims, progress, locks, breakers, *limits, resources, steps, parents, grace, encrypted, ring
    )
    parts = deps, progress, thread_pool, process_pool
    return Executor(*parts) if tracer is None else TracedExecutor(tracer, *parts)


async def open_resources(
    stack: AsyncExitStack, makers: Mapping[str, Callable[[], Any]], kinds: Iterable[Kind[Any, Any]]
) -> dict[str, Any]:
    """Opens the resources that these kinds ask for; each is closed with `stack`, the last one first."""
    wanted: dict[str, None] = {}
    for kind in kinds:
        for name in kind.signature.resources.values():
            if name not in makers:
                known = ", ".join(sorted(makers)) or "none"
                raise UsageError(f"kind {kind.name} asks for the resource {name!r}; registered are: {known}")
            if kind.mode is Mode.PROCESS:
                raise UsageError(
                    f"kind {kind.name} runs in a process of its own, where {name!r} cannot be shared; open it inside"
                )
            wanted[name] = None
    return {name: await _open(stack, makers[name]) for name in wanted}


async def _open(stack: AsyncExitStack, make: Callable[[], Any]) -> Any:
    # Closed without the error that `stack` may end with: inside the generator it would skip the lines that close the
    # resource, or be caught there and disappear.
    if inspect.isasyncgenfunction(make):
        streamed = asynccontextmanager(make)()
        made = await streamed.__aenter__()
        stack.push_async_callback(streamed.__aexit__, None, None, None)
        return made
    if inspect.isgeneratorfunction(make):
        generated = contextmanager(make)()
        made = generated.__enter__()
        stack.callback(generated.__exit__, None, None, None)
        return made
    made = make()
    return await made if inspect.isawaitable(made) else made
