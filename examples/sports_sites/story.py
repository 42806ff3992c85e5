"""The story: a night shift. Services fail, people are paged, nothing is lost; then the results are checked."""

import asyncio
import base64
import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
from rich.console import Console

from dutiful import AlertState, BreakerState, CorrelationTree, Drain, Dutiful, Operator, PauseScope, Role, State
from examples.schemas import own_schema
from examples.sports_sites.config import Config
from examples.sports_sites.event_log import EventLog, following
from examples.sports_sites.fake_services import FakeServices
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.processes import Deployment, Process, deployment
from examples.sports_sites.sample_data import CARETAKER, SITES, fill
from examples.sports_sites.service import KEPT_DAYS, sports_app
from examples.sports_sites.views import SCHEMA, Views, views
from examples.sports_sites.watch import Watch

SECRET = "whsec_" + base64.b64encode(b"the pager of the sports register").decode()
SHIFT, SLOW = "night-shift", ("analysis", "elevation")
ACTION, MEANWHILE, GRID = "user-action-123", "meanwhile", "population-grid"
DEADLINE = 120.0
PATIENT = 20  # attempts of an analysis: how many probes fail depends on the machine
# What takes minutes at night takes seconds here.
PACE = {
    "DUTIFUL_PROFILE": "production",
    "DUTIFUL_BREAKER_FAILURES": "3",
    "DUTIFUL_BREAKER_OPEN_FOR": "2s",
    "DUTIFUL_ALERT_INTERVAL": "300ms",
    "DUTIFUL_HEARTBEAT": "500ms",
    "DUTIFUL_RETRY_BASE": "200ms",
}


async def run_story(console: Console, folder: Path, database_url: str) -> bool:
    """Returns whether all checks pass."""
    services = FakeServices(SECRET)
    async with (
        asyncio.timeout(DEADLINE),
        services.open() as addresses,
        own_schema(database_url, "sports") as schema,
        own_schema(database_url, "sports_views") as views_schema,
    ):
        config = Config(
            folder=folder,
            services=addresses.services,
            smtp_port=addresses.smtp_port,
            reminders_every="3s",
            pager_secret=SECRET,
            fast_threads=3,
            general_threads=5,
        )
        environment = {**config.environment(), **PACE, "DUTIFUL_DATABASE_URL": database_url}
        if schema is not None:
            environment["DUTIFUL_SCHEMA"] = schema
        app = sports_app(config, database_url, schema=schema)
        fill(folder)
        await app.migrate()
        async with (
            app,
            views(app, views_schema or SCHEMA) as tables,
            following(app, console) as log,
            deployment(folder, environment) as processes,
        ):
            await tables.install()
            operator = await app.operator(SHIFT)
            _, secret = await operator.tokens.create("web", Role.MANAGER)
            url, worker = await asyncio.gather(processes.server(), processes.worker())
            server = Server(url, {"authorization": f"Bearer {secret}"})
            story = Story(log, app, operator, services, tables, processes, server, worker)
            await story.change()
            await story.lanes()
            await story.outage()
            await story.poison()
            await story.maintenance()
            await story.figures()
            return await story.check()


@dataclass(frozen=True)
class Server:
    """The server process, and a token for it."""

    url: str
    headers: dict[str, str]

    async def enqueue(self, kind: str, payload: dict[str, Any], correlation_id: str) -> None:
        options = {"correlation_id": correlation_id}
        body = {"kind": kind, "payload": payload, "options": options}
        async with httpx2.AsyncClient(timeout=30) as http:
            asked = await http.post(f"{self.url}/api/jobs/admin/jobs/", json=body, headers=self.headers)
        asked.raise_for_status()


@dataclass
class Story:
    log: EventLog
    app: Dutiful
    operator: Operator
    services: FakeServices
    tables: Views
    processes: Deployment
    server: Server
    worker: Process
    tree: CorrelationTree | None = None
    held_up: int = -1  # analyses that had ended when all quick jobs were done
    indices: dict[int, set[float]] = field(default_factory=dict)  # the results of analyses, by site
    letter: UUID | None = None
    requeued: UUID | None = None
    drained: Drain | None = None
    left: tuple[int, int] = (-1, -1)  # the old worker's exit code, and the attempts of its last job

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.app, SHIFT)
        self.watch = Watch(self.operator, self.services)

    async def change(self) -> None:
        self.log.chapter("A site changes: the server enqueues jobs, a worker runs them")
        for kind in ("integration", "analysis", "elevation"):
            await self.server.enqueue(kind, {"lipas-id": 12345}, ACTION)
        await self.server.enqueue("email", _mail("ada@club.example", "site-changed", site="Harbour pool"), ACTION)
        self.tree = await self.watch.tree(ACTION, 5)
        await self.log.ended(*(member.id for member in self.tree.members))
        self.log.say(f"all jobs of {ACTION}:")
        for member in self.tree.tree():
            self.log.say(f"{'   ' * member.depth}  └─ {member.kind} {member.state}")

    async def lanes(self) -> None:
        self.log.chapter("Slow jobs fill their lane: eight analyses for five slots, while quick jobs are done")
        before = self.services.called["grid"]
        self.services.hold("grid")
        analyses = {await self._analysis(site.lipas_id): site.lipas_id for site in (*SITES, *SITES)}
        await self.watch.calls("grid", before + 5)
        self.log.say("five analyses run, three wait")
        quick = [await self._welcome(f"member-{n}") for n in range(4)]
        quick.append((await self.jobs.enqueue("produce-reminders")).id)
        quick.append((await self.jobs.enqueue("cleanup-jobs", {"days-old": KEPT_DAYS})).id)
        await self.jobs.enqueue("integration", {"lipas-id": 12346}, correlation_id=MEANWHILE)
        news = await self.watch.tree(MEANWHILE, 2)  # the integration, and the webhook that it leads to
        await self.log.ended(*quick, *(member.id for member in news.members))
        self.held_up = sum([(await self.operator.jobs.get(job)).state.final for job in analyses])
        self.log.say(f"mails, reminders, cleanup, integration and webhook are done; {self.held_up} analyses have ended")
        self.services.release("grid")
        await self.log.ended(*analyses)
        for job, site in analyses.items():
            self.indices.setdefault(site, set()).add((await self.operator.jobs.get(job)).result["index"])

    async def outage(self) -> None:
        self.log.chapter("The population grid fails: its breaker opens, analyses wait, the pager is called")
        self.services.fail("grid")
        analyses = [await self._analysis() for _ in range(6)]
        await self.watch.breaker(GRID, BreakerState.OPEN)
        await self.watch.idle(*analyses)
        await self.log.ended(await self._welcome("bob"))  # after their events
        self.log.say(f"breaker {GRID} is open: no analysis starts; mail is not affected")
        await self.watch.alert(GRID, AlertState.FIRING)
        await self.watch.pages("alert.firing")
        waiting = sum([(await self.operator.jobs.get(job)).state is State.BLOCKED for job in analyses])
        self.log.say(f"alert breaker-open fires, the pager is called; {waiting} analyses wait")
        self.services.repair("grid")
        self.log.say("the grid works again; the next probe closes the breaker")
        await self.log.ended(*analyses)
        await self.watch.breaker(GRID, BreakerState.CLOSED)
        await self.watch.alert(GRID, AlertState.OK)
        await self.watch.pages("alert.firing", "alert.cleared")
        self.log.say(f"breaker {GRID} is closed, the alert is cleared, the pager is notified")

    async def poison(self) -> None:
        self.log.chapter("A mail cannot be delivered: it is a dead letter, until its cause is fixed")
        self.services.closed.add("carol@club.example")
        self.letter = await self._welcome("carol")
        await self.log.ended(self.letter)
        await self.jobs.acknowledge(self.letter, "the club forgot to make the mailbox")
        self.services.closed.clear()
        again = await self.jobs.requeue(self.letter)
        self.requeued = again.id
        self.log.say(f"acknowledged by {SHIFT}, and requeued: {again.type} to {again.payload['to']}")
        await self.log.ended(again.id)

    async def maintenance(self) -> None:
        self.log.chapter("Maintenance: analyses are drained, the worker is replaced while it sends a mail")
        await self.watch.delivered(CARETAKER)  # by the scheduler; otherwise it would be counted below
        before = self.services.called["grid"]
        self.services.hold("grid")
        running = await self._analysis()
        await self.watch.calls("grid", before + 1)
        drain = await self.operator.fleet.drain(kinds=SLOW, reason="the grid moves")
        self.log.say(f"draining: {drain.running} analysis runs")
        waiting = await self._analysis()
        self.services.release("grid")
        self.drained = await self.operator.fleet.wait_drained(drain, timedelta(seconds=DEADLINE), lambda _: None)
        await self.log.ended(running)
        self.log.say("safe: nothing runs; new jobs wait")
        await self._replace_worker()
        for kind in SLOW:
            await self.operator.fleet.resume(PauseScope.KIND, kind, "the grid has moved")
        self.log.say("resumed")
        await self.log.ended(waiting)

    async def _replace_worker(self) -> None:
        """Starts the new worker, then stops the old one, which finishes its job first."""
        before = self.services.called["mail"]
        self.services.hold("mail")
        mail = await self._welcome("dan")
        await self.watch.calls("mail", before + 1)
        await self.processes.worker()
        self.worker.stop()
        self.services.release("mail")
        code = await self.worker.ended()
        await self.log.ended(mail)
        self.left = code, (await self.operator.jobs.get(mail)).attempt
        self.log.say(f"the old worker has sent its mail and ended with {code}; the new one continues")

    async def figures(self) -> None:
        self.log.chapter("The night in figures: counts and metrics")
        sent = f'attempts_total{{kind="email",outcome="completed"}} {len(self.services.delivered)}\n'
        await self.watch.metric(self.server.url, self.server.headers, sent)
        samples = {(one.metric, one.labels.get("kind")): one.value for one in await self.operator.metrics.samples()}
        for row in await self.tables.rows("select type, status, jobs from job_queue_health order by type, status"):
            half, most = (samples.get((f"run_{share}_seconds", row["type"]), 0.0) for share in ("p50", "p95"))
            rate = samples.get(("error_rate", row["type"]), 0.0)
            count = f"{row['type']:<18} {row['status']:<10} {row['jobs']:>3}"
            self.log.say(f"{count}   p50 {_length(half)}, p95 {_length(most)}, {rate:.0%} failed")

    async def check(self) -> bool:
        self.log.chapter("Checks")
        checks = {**self._work(), **await self._trouble(), **await self._people(), **await self._rest()}
        return all([self.log.check(line, true) for line, true in checks.items()])  # noqa: C419 - prints all

    def _work(self) -> dict[str, bool]:
        assert self.tree is not None
        tree = sorted((one.kind, one.depth) for one in self.tree.members)
        found = {frozenset(indices) for indices in self.indices.values() if len(indices) == 1}
        mails = [str(mail["To"]) for mail in self.services.delivered]
        return {
            "the change caused five jobs, in one tree": tree
            == [("analysis", 0), ("elevation", 0), ("email", 0), ("integration", 0), ("webhook", 1)],
            "the log of the worker has its correlation id, from all five": len(self._logged(ACTION)) == 5,
            "none of the five quick kinds waited for an analysis": self.held_up == 0,
            "each site has one index, the same from each analysis": len(found) == len(SITES),
            "each of nine mails was sent once, including the reminder": len(set(mails)) == len(mails) == 9,
        }

    def _logged(self, correlation_id: str) -> set[str]:
        """The kinds whose handlers have logged a line for this action."""
        line = re.compile(rf" INFO register .* kind=(\S+) .*correlation_id={correlation_id}\b")
        return set(line.findall(self.worker.log.read_text()))

    async def _trouble(self) -> dict[str, bool]:
        failing = await self.tables.rows("select service_name, state from circuit_breakers where failure_count > 0")
        (trips,) = [one.breaker.trips for one in await self.operator.breakers.all() if one.breaker.name == GRID]
        pages = self.watch.received_pages()
        return {
            "the breaker opened, and a probe closed it": failing == [] and trips >= 1,
            "the alert fired and cleared, and the pager got both": pages == ["alert.firing", "alert.cleared"],
        }

    async def _people(self) -> dict[str, bool]:
        assert self.letter is not None and self.drained is not None
        letter = await self.watch.resolved(self.letter)
        reviewed = letter.acknowledged_by == SHIFT and letter.new_job_id == self.requeued
        return {
            "the dead letter was acknowledged, requeued, and is resolved": reviewed,
            "the drain became safe": self.drained.safe,
            "the old worker finished its job, at the first attempt": self.left == (0, 1),
        }

    async def _rest(self) -> dict[str, bool]:
        rows = await self.tables.rows("select status from jobs where type <> 'produce-reminders'")
        statuses = [row["status"] for row in rows]
        done = statuses.count("dead") == 1 and set(statuses) == {"completed", "dead"}
        return {"all jobs are completed, except one dead letter": done}

    async def _analysis(self, lipas_id: int = 12345) -> UUID:
        return (await self.jobs.enqueue("analysis", {"lipas-id": lipas_id}, max_attempts=PATIENT)).id

    async def _welcome(self, name: str) -> UUID:
        return (await self.jobs.enqueue("email", _mail(f"{name}@club.example", "welcome", name=name))).id


def _length(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "<1 ms"


def _mail(to: str, template: str, **data: str) -> dict[str, Any]:
    return {"to": to, "template": template, "data": data}
