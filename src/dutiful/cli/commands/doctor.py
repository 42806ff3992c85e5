"""`doctor`: checks the database, workers and jobs, and names remedies."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
import typer

from dutiful.app import Dutiful
from dutiful.cli import FAILURE
from dutiful.cli.options import AsJson
from dutiful.cli.output.printing import console, now, plain, print_json, show
from dutiful.cli.target import sqlite_file, target
from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import BackendAway, SchemaMismatch, StoreAway, StoreBusy, StoreUnavailable
from dutiful.core.metrics.alert import Alert, AlertRule, AlertState
from dutiful.core.review.audit import AuditEvent
from dutiful.core.states import State
from dutiful.delivery.backend import ClosableBackend, Pingable, QueueBackend, StoreBackend
from dutiful.observe.deliveries import count_deliveries
from dutiful.operator.explain import START, FleetState, paused_text, resume_command
from dutiful.store import Store
from dutiful.store.dead_letters import BulkRun
from dutiful.store.metrics import OTHERS
from dutiful.store.queries import JobFilter, QueueRecord
from dutiful.store.schedules import ScheduleRecord
from dutiful.store.workers import Process, WorkerRecord

OLD_TRANSACTION = timedelta(minutes=5)
MANY_DEAD_ROWS = 200_000
LONG_WAIT = timedelta(minutes=5)
LATE = timedelta(minutes=1)
SAMPLE = 200
LOCK_WAIT = timedelta(seconds=3)
LONGEST_STATEMENT = timedelta(seconds=30)
FLEET = "fleet"
MOST_ALIKE = 20  # findings of one check


class Level(StrEnum):
    PROBLEM = "problem"  # something does not work: exit code 1
    WARNING = "warning"  # something may stop working


class Finding(msgspec.Struct, frozen=True):
    level: Level
    what: str
    remedy: str


@dataclass(slots=True)
class Report:
    url: str
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Set up")(doctor)


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Check the database, the workers and the jobs; name each problem with its remedy.

    Exit code 1 means a problem; with warnings only, it is 0.
    """
    report = asyncio.run(_examine(target(ctx).any_app()))
    if as_json:
        print_json(
            {"database": report.url, "healthy": report.healthy, "facts": report.facts, "findings": report.findings}
        )
    else:
        _print(report)
    if not report.healthy:
        raise typer.Exit(FAILURE)


def _print(report: Report) -> None:
    from rich.text import Text

    show(f"database  {plain(report.url)}")
    for name, value in report.facts.items():
        show(f"{name.replace('_', ' ')}  {plain(str(value))}")
    show("")
    out = console()
    for finding in report.findings:
        style = "bold red" if finding.level is Level.PROBLEM else "yellow"
        out.print(Text.assemble((finding.level.value, style), f": {plain(finding.what)}"), soft_wrap=True)
        out.print(f"  → {plain(finding.remedy)}", soft_wrap=True)
    count = len(report.findings)
    show("no problems found" if not count else f"{count} finding{'s' * (count != 1)}")


async def _examine(app: Dutiful) -> Report:
    store = app.make_store()
    report = Report(store.url)
    store.limit_waits(LOCK_WAIT, LONGEST_STATEMENT)
    try:
        await store.check_made()
        await store.open()
        try:
            await _check(store, report, app.alert_rules(), {kind.queue for kind in app.kinds.values()})
            await _check_broker(app.make_backend(store), store, report)
        finally:
            await store.close()
    except SchemaMismatch as error:
        report.findings.append(Finding(Level.PROBLEM, error.problem, error.remedy))
    except StoreBusy:
        report.findings.append(await _blocked(store, ["anything"]))
    except StoreUnavailable as error:
        remedy = (
            "check the address, that the server runs, and the role"
            if sqlite_file(store) is None
            else "check the path, the disk, and which processes use the file"
        )
        report.findings.append(Finding(Level.PROBLEM, str(error), remedy))
    return report


async def _check(store: Store, report: Report, rules: Mapping[str, AlertRule], named: Collection[str]) -> None:
    moment = now()
    read: dict[str, Awaitable[Any]] = {
        "the database": store.queries.health(),
        "the places of jobs": store.queries.check_places(),
        "queues": store.queries.queues(named=named),
        "ready jobs": store.queries.jobs(JobFilter(state=State.READY, limit=SAMPLE)),
        "lost jobs": store.claims.expired(SAMPLE, now=moment - LATE),
        "workers": store.workers.all(),
        "pauses": store.control.pauses(),
        "schedules": store.schedules.all(),
        "the audit trail": store.audit.unsealed(1),
        "how long audit events are kept": store.audit.retention(),
        "bulk runs": store.dead_letters.bulk_runs(running=True),
        "alerts": store.alerts.all(),
        "the evaluation of alerts": store.alerts.last_check(),
    }
    # All at once: a lock on one table keeps nothing else from being checked, and each waits for it at the same time.
    answers = dict(zip(read, await asyncio.gather(*read.values(), return_exceptions=True), strict=True))
    failed = {what: answer for what, answer in answers.items() if isinstance(answer, BaseException)}
    for what, error in failed.items():
        if isinstance(error, StoreAway):
            raise StoreAway(f"not checked: {what}: {error}") from error
        if not isinstance(error, StoreBusy):
            raise error
    if failed:
        report.findings.append(await _blocked(store, failed))
    found: dict[str, Any] = {what: answer for what, answer in answers.items() if what not in failed}
    if {"workers", "pauses"} <= found.keys():
        found[FLEET] = FleetState.of(found["workers"], found["pauses"])
    report.facts = _facts(found)
    checks: list[tuple[set[str], Callable[[], Iterable[Finding]]]] = [
        ({"the database"}, lambda: _database(found["the database"])),
        ({"the places of jobs"}, lambda: _places(found["the places of jobs"])),
        ({"queues", FLEET}, lambda: _queues(found["queues"], found[FLEET], moment, named)),
        ({"ready jobs", FLEET}, lambda: _kinds(found["ready jobs"], found[FLEET])),
        ({FLEET}, lambda: _locks(found[FLEET])),
        ({"workers"}, lambda: _stopped(found["workers"])),
        (
            {FLEET, "the evaluation of alerts"},
            lambda: _leaderless(found[FLEET], found["the evaluation of alerts"], moment),
        ),
        ({"lost jobs"}, lambda: _expired(len(found["lost jobs"]))),
        ({"schedules"}, lambda: _schedules(found["schedules"], moment)),
        ({"the audit trail", FLEET}, lambda: _trail(found["the audit trail"], found[FLEET], moment)),
        ({"bulk runs", FLEET}, lambda: _bulk(found["bulk runs"], found[FLEET])),
        (
            {"alerts", "the evaluation of alerts"},
            lambda: _alerts(found["alerts"], rules, found["the evaluation of alerts"], moment),
        ),
        ({FLEET}, lambda: _pauses(found[FLEET], moment)),
    ]
    for needed, check in checks:
        if needed <= found.keys():
            report.findings += _shown(list(check()))


def _shown(alike: Sequence[Finding]) -> Iterator[Finding]:
    """The first of one check; who may enqueue may invent any number of queues."""
    yield from alike[:MOST_ALIKE]
    if rest := alike[MOST_ALIKE:]:
        worst = Level.PROBLEM if any(one.level is Level.PROBLEM for one in rest) else Level.WARNING
        yield Finding(worst, f"and {len(rest):,} more like the last", "see to those above, and check again")


async def _check_broker(backend: QueueBackend, store: Store, report: Report) -> None:
    """Checks Redis, if jobs are delivered through it."""
    if isinstance(backend, StoreBackend):
        return
    counts = await count_deliveries(store.deliveries)
    report.facts["delivered"] = counts.outstanding
    report.facts["undelivered"] = counts.undelivered
    if counts.undelivered and counts.undelivered == (await count_deliveries(store.deliveries)).undelivered:
        what = f"{counts.undelivered:,}{' or more' * counts.more} ready jobs are not delivered to Arq workers"
        remedy = "start a worker with the setting redis_url, which delivers them; or `dutiful redeliver`"
        report.findings.append(Finding(Level.WARNING, what, remedy))
    if isinstance(backend, Pingable):
        try:
            report.facts["redis"] = await backend.ping()
        except BackendAway as error:
            remedy = "start Redis, or mend redis_url; jobs are stored meanwhile, and delivered when it is back"
            report.findings.append(Finding(Level.PROBLEM, str(error), remedy))
    if isinstance(backend, ClosableBackend):
        await backend.close()


def _facts(found: Mapping[str, Any]) -> dict[str, Any]:
    health = found.get("the database", {})
    facts = {name: _fact(value) for name, value in health.items() if name not in ("worries", "problems")}
    if FLEET in found:
        facts["workers_alive"] = len(found[FLEET].workers)
    if (kept := "how long audit events are kept") in found:
        facts["audit_events_kept"] = _fact(found[kept]) or "forever"
    return facts


async def _blocked(store: Store, unchecked: Iterable[str]) -> Finding:
    held, remedy = await store.blockers()
    what = f"not checked: {', '.join(unchecked)}: for {brief(LOCK_WAIT)}, a table was locked by {held}"
    return Finding(Level.PROBLEM, what, remedy)


def _fact(value: Any) -> Any:
    return brief(value) if isinstance(value, timedelta) else value


def _places(violations: Iterable[str]) -> Iterator[Finding]:
    for violation in violations:
        yield Finding(Level.PROBLEM, violation, "report it with this line; it is a bug")


def _pauses(fleet: FleetState, moment: datetime) -> Iterator[Finding]:
    for pause in fleet.pauses:
        what = f"{pause.scope} {pause.name} was {paused_text(pause, moment)}"
        yield Finding(Level.WARNING, what, f"`{resume_command(pause)}`")


def _database(health: dict[str, Any]) -> Iterator[Finding]:
    for what, remedy in health.get("problems", []):
        yield Finding(Level.PROBLEM, what, remedy)
    for worry in health.get("worries", []):
        what, _, remedy = worry.rpartition(": ")
        yield Finding(Level.WARNING, what or worry, remedy)
    oldest = health.get("oldest_transaction")
    if oldest is not None and oldest > OLD_TRANSACTION:
        yield Finding(
            Level.WARNING,
            f"a transaction has been open for {brief(oldest)}: dead rows cannot be removed, and claims slow down",
            "find it in pg_stat_activity by xact_start and end it, or set idle_in_transaction_session_timeout",
        )
    dead = health.get("dead_rows", 0)
    if dead > MANY_DEAD_ROWS:
        yield Finding(
            Level.WARNING,
            f"the queue tables hold {dead:,} dead rows, so claims are slower than they could be",
            "end old transactions, see that autovacuum runs, then `VACUUM` the tables ready and lease",
        )
    for name in ("fsync", "synchronous_commit"):
        if health.get(name) == "off":
            yield Finding(
                Level.WARNING,
                f"{name} is off: jobs that were acknowledged can be lost when the server crashes",
                f"set {name} = on in postgresql.conf",
            )


def _queues(
    queues: Iterable[QueueRecord], fleet: FleetState, moment: datetime, named: Collection[str]
) -> Iterator[Finding]:
    for queue in sorted(queues, key=lambda one: (one.queue not in named, -one.ready)):
        waited = moment - queue.oldest_ready_at if queue.oldest_ready_at else timedelta(0)
        has = f"{queue.queues:,} other queues have" if queue.queue == OTHERS else f"queue {queue.queue!r} has"
        first = f", the first made {brief(waited)} ago" if queue.oldest_ready_at else ""
        count = f"{has} {'about ' * queue.estimated}{queue.ready:,} ready job(s){first}"
        if not queue.ready or queue.paused:
            continue
        if not fleet.workers:
            yield Finding(Level.PROBLEM, f"{count}, and no worker is alive", START)
        elif not any(fleet.serving(queue.queue)):
            yield Finding(
                Level.PROBLEM, f"{count}, and no live worker serves it", "start a worker with a lane for this queue"
            )
        elif waited > LONG_WAIT:
            yield Finding(Level.WARNING, f"{count}: workers do not keep up", "add slots to its lane, or workers")


def _kinds(ready: Iterable[Any], fleet: FleetState) -> Iterator[Finding]:
    """Kinds that no worker knows, in a sample of the ready jobs."""
    for queue, kind in sorted({(job.queue, job.kind) for job in ready}):
        serving = list(fleet.serving(queue))
        if serving and not any(kind in worker.kinds for worker, _, _ in serving):
            yield Finding(
                Level.PROBLEM,
                f"queue {queue!r} has ready jobs of kind {kind!r}, which no live worker that serves it knows",
                "deploy the code that has this kind, or cancel the jobs",
            )


def _locks(fleet: FleetState) -> Iterator[Finding]:
    by_mode = {worker.locks: worker.name for worker in fleet.workers if worker.locks is not None}
    if len(by_mode) > 1:
        how = " and ".join(f"as {mode} ({name})" for mode, name in sorted(by_mode.items()))
        yield Finding(
            Level.PROBLEM,
            f"live workers keep named locks {how}: these do not exclude each other, so the later ones do not get locks",
            "let all workers reach Postgres the same way, with the same lock_classes; set direct_url for those behind "
            "a pooler",
        )


def _stopped(workers: Iterable[WorkerRecord]) -> Iterator[Finding]:
    for worker in workers:
        if worker.process is not Process.STOPPED:
            continue
        leads = " and leads, so that schedules and due jobs may be late"
        yield Finding(
            Level.PROBLEM,
            f"worker {worker.name} is stopped (by a signal or a debugger){leads if worker.leading else ''}",
            f"continue it: `kill -CONT {worker.pid}`; or end it: `kill -KILL {worker.pid}`",
        )


def _leaderless(fleet: FleetState, watched: datetime | None, moment: datetime) -> Iterator[Finding]:
    alive = fleet.leaders
    # A leader evaluates alerts: so none has led for a minute, and this is no change of the leader.
    if watched is None and any(moment - one.started_at > LATE for one in alive) and not any(w.leading for w in alive):
        count = "1 worker is" if len(alive) == 1 else f"{len(alive):,} workers are"
        yield Finding(
            Level.PROBLEM,
            f"{count} alive, and none leads: nothing is promoted, rescued or scheduled",
            "start a worker without --no-services",
        )


def _expired(count: int) -> Iterator[Finding]:
    if count:
        what = f"{count} running job(s) lost their worker over {brief(LATE)} ago, and no worker has rescued them"
        yield Finding(Level.PROBLEM, what, f"workers do that: {START}")


def _trail(unsealed: Iterable[AuditEvent], fleet: FleetState, moment: datetime) -> Iterator[Finding]:
    for oldest in unsealed:
        waited = moment - oldest.at
        what = f"audit events have waited for their seal for {brief(waited)}"
        if any(worker.leading for worker in fleet.leaders) and waited > LATE:
            yield Finding(
                Level.PROBLEM,
                f"{what}, though a worker leads",
                "check their logs for the sealer; if tenants are on, let workers log in as a role of the group "
                "worker (`dutiful tenants status`), and restart them",
            )
        elif waited > LONG_WAIT:
            yield Finding(
                Level.WARNING, f"{what}: until then changes to them go undetected", f"workers seal them: {START}"
            )


def _bulk(runs: Iterable[BulkRun], fleet: FleetState) -> Iterator[Finding]:
    for run in () if fleet.leaders else runs:
        public = ids.public(run.id)
        what = f"bulk run {public} is at {run.done + run.skipped:,} of {run.total:,}, and no worker is alive"
        yield Finding(Level.WARNING, f"{what} to continue it", f"{START}, or `dutiful bulk resume {public}`")


def _alerts(
    alerts: Iterable[Alert], rules: Mapping[str, AlertRule], watched: datetime | None, moment: datetime
) -> Iterator[Finding]:
    for alert in alerts:
        if alert.state is not AlertState.FIRING:
            continue
        rule, series = rules.get(alert.rule), f" ({alert.series})" if alert.series else ""
        what = f"alert {alert.rule!r}{series} has fired for {brief(moment - alert.since)}: {alert.summary}"
        remedy = "see `dutiful alerts`" if rule is None or rule.runbook is None else f"read {rule.runbook}"
        if watched is None:
            # The state when a worker last evaluated it.
            yield Finding(Level.WARNING, f"{what}; no worker evaluates alerts any more", START)
        else:
            yield Finding(Level.PROBLEM, what, remedy)


def _schedules(schedules: Iterable[ScheduleRecord], moment: datetime) -> Iterator[Finding]:
    for schedule in schedules:
        if schedule.enabled and moment - schedule.next_at > LATE:
            what = f"schedule {schedule.name!r} should have fired {brief(moment - schedule.next_at)} ago"
            yield Finding(Level.PROBLEM, what, f"workers do that: {START}")
