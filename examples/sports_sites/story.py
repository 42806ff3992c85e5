"""The story: a night of the register. Services fail, people are woken, nothing is lost, and in the end it adds up."""

import asyncio
import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
from rich.console import Console

from dutiful import AlertState, BreakerState, Drain, Dutiful, Family, Operator, PauseScope, Role, State
from examples.schemas import own_schema
from examples.sports_sites.config import Config
from examples.sports_sites.jobs import ATTEMPTS, Jobs
from examples.sports_sites.ledger import Ledger, following
from examples.sports_sites.outside import Outside
from examples.sports_sites.processes import House, Process, house
from examples.sports_sites.service import KEPT_DAYS, sports_app
from examples.sports_sites.sites import Site, Sites
from examples.sports_sites.views import SCHEMA, Views, views
from examples.sports_sites.watch import Watch

SECRET = "whsec_" + base64.b64encode(b"the pager of the sports register").decode()
SHIFT, SLOW = "night-shift", ("analysis", "elevation")
ACTION, MEANWHILE, GRID, CARETAKER = "user-action-123", "meanwhile", "population-grid", "caretaker@club.example"
DEADLINE = 120.0
PATIENT = 20  # attempts of an analysis: how often a probe finds the grid still down is for the machine to say
# What takes minutes at night takes seconds here.
PACE = {
    "DUTIFUL_PROFILE": "production",
    "DUTIFUL_BREAKER_FAILURES": "3",
    "DUTIFUL_BREAKER_OPEN_FOR": "2s",
    "DUTIFUL_ALERT_INTERVAL": "300ms",
    "DUTIFUL_HEARTBEAT": "500ms",
    "DUTIFUL_RETRY_BASE": "200ms",
}
SITES = [
    Site(12345, "Harbour pool", "swimming", 385_000, 6_672_000),
    Site(12346, "Hill tracks", "skiing", 385_300, 6_672_200),
    Site(12347, "School field", "football", 384_900, 6_671_700),
    Site(12348, "Beach courts", "volleyball", 386_500, 6_672_000),
]


async def tell(console: Console, folder: Path, database_url: str) -> bool:
    """Whether it added up."""
    outside = Outside(SECRET)
    async with (
        asyncio.timeout(DEADLINE),
        outside.open() as addresses,
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
        _fill(folder)
        await app.make_store().migrate()
        async with (
            app,
            views(app, views_schema or SCHEMA) as tables,
            following(app, console) as ledger,
            house(folder, environment) as home,
        ):
            await tables.install()
            operator = await app.operator(SHIFT)
            _, secret = await operator.create_token("web", Role.MANAGER)
            url, worker = await asyncio.gather(home.server(), home.worker())
            server = Server(url, {"authorization": f"Bearer {secret}"})
            story = Story(ledger, app, operator, outside, tables, home, server, worker)
            await story.change()
            await story.lanes()
            await story.outage()
            await story.poison()
            await story.maintenance()
            await story.figures()
            return await story.adds_up()


def _fill(folder: Path) -> None:
    sites = Sites(folder)
    for site in SITES:
        sites.add(site)
    sites.remind(12346, CARETAKER, datetime.now(UTC) - timedelta(days=1))
    sites.close()


@dataclass(frozen=True)
class Server:
    """The process that takes requests, with a token for it."""

    url: str
    headers: dict[str, str]

    async def enqueue(self, kind: str, payload: dict[str, Any], correlation_id: str) -> None:
        options = {"correlation_id": correlation_id, "max_attempts": ATTEMPTS}
        body = {"kind": kind, "payload": payload, "options": options}
        async with httpx2.AsyncClient(timeout=30) as http:
            asked = await http.post(f"{self.url}/api/jobs/admin/jobs/", json=body, headers=self.headers)
        asked.raise_for_status()


@dataclass
class Story:
    ledger: Ledger
    app: Dutiful
    operator: Operator
    outside: Outside
    tables: Views
    home: House
    server: Server
    worker: Process
    family: Family | None = None
    held_up: int = -1  # analyses that had ended when all quick jobs had
    indices: dict[int, set[float]] = field(default_factory=dict)  # by site, what its analyses came to
    letter: UUID | None = None
    requeued: UUID | None = None
    drained: Drain | None = None
    left: tuple[int, int] = (-1, -1)  # the old worker's exit code, and the attempts of what it ran at the end

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.app, SHIFT)
        self.watch = Watch(self.operator, self.outside)

    async def change(self) -> None:
        self.ledger.chapter("Somebody changes a site: the server takes it, a worker sees to all that follows")
        for kind in ("integration", "analysis", "elevation"):
            await self.server.enqueue(kind, {"lipas-id": 12345}, ACTION)
        await self.server.enqueue("email", _mail("ada@club.example", "site-changed", site="Harbour pool"), ACTION)
        self.family = await self.watch.family(ACTION, 5)
        await self.ledger.ended(*(member.id for member in self.family.members))
        self.ledger.say(f"all that came of {ACTION}:")
        for member in self.family.tree():
            self.ledger.say(f"{'   ' * member.depth}  └─ {member.kind} {member.state}")

    async def lanes(self) -> None:
        self.ledger.chapter(
            "Slow work fills its lane: eight analyses for five slots, and all quick work is done meanwhile"
        )
        before = self.outside.called["grid"]
        self.outside.hold("grid")
        analyses = {await self._analysis(site.lipas_id): site.lipas_id for site in (*SITES, *SITES)}
        await self.watch.calls("grid", before + 5)
        self.ledger.say("five analyses run, three wait")
        quick = [await self._welcome(f"member-{n}") for n in range(4)]
        quick.append((await self.jobs.enqueue("produce-reminders")).id)
        quick.append((await self.jobs.enqueue("cleanup-jobs", {"days-old": KEPT_DAYS})).id)
        await self.jobs.enqueue("integration", {"lipas-id": 12346}, correlation_id=MEANWHILE)
        news = await self.watch.family(MEANWHILE, 2)  # the integration, and the webhook that it leads to
        await self.ledger.ended(*quick, *(member.id for member in news.members))
        self.held_up = sum([(await self.operator.job(job)).state.final for job in analyses])
        self.ledger.say(
            f"mails, reminders, clean-up, integration and webhook are done; {self.held_up} analyses have ended"
        )
        self.outside.release("grid")
        await self.ledger.ended(*analyses)
        for job, site in analyses.items():
            self.indices.setdefault(site, set()).add((await self.operator.job(job)).result["index"])

    async def outage(self) -> None:
        self.ledger.chapter("The population grid fails: its breaker opens, analyses wait, somebody is woken")
        self.outside.fail("grid")
        analyses = [await self._analysis() for _ in range(6)]
        await self.watch.breaker(GRID, BreakerState.OPEN)
        await self.watch.rests(*analyses)
        await self.ledger.ended(await self._welcome("bob"))  # which is told after what those came to
        self.ledger.say(f"breaker {GRID} is open: no analysis is begun any more; mail is none of its business")
        await self.watch.alert(GRID, AlertState.FIRING)
        await self.watch.pages("alert.firing")
        waiting = sum([(await self.operator.job(job)).state is State.BLOCKED for job in analyses])
        self.ledger.say(f"alert breaker-open fires, the pager goes; {waiting} analyses wait")
        self.outside.mend("grid")
        self.ledger.say("the grid is mended; the next probe will find out")
        await self.ledger.ended(*analyses)
        await self.watch.breaker(GRID, BreakerState.CLOSED)
        await self.watch.alert(GRID, AlertState.OK)
        await self.watch.pages("alert.firing", "alert.cleared")
        self.ledger.say(f"breaker {GRID} is closed, the alert is over, the pager knows")

    async def poison(self) -> None:
        self.ledger.chapter("A mail cannot be delivered: it is a dead letter, until somebody has mended its cause")
        self.outside.closed.add("carol@club.example")
        self.letter = await self._welcome("carol")
        await self.ledger.ended(self.letter)
        await self.jobs.acknowledge(self.letter, "the club forgot to make the mailbox")
        self.outside.closed.clear()
        again = await self.jobs.requeue(self.letter)
        self.requeued = again.id
        self.ledger.say(f"acknowledged by {SHIFT}, and requeued: {again.type} to {again.payload['to']}")
        await self.ledger.ended(again.id)

    async def maintenance(self) -> None:
        self.ledger.chapter("Maintenance: analyses are drained, the worker is replaced while it still sends a mail")
        await self.watch.delivered(CARETAKER)  # by the scheduler; or it would be in the way of the mail that is meant
        before = self.outside.called["grid"]
        self.outside.hold("grid")
        running = await self._analysis()
        await self.watch.calls("grid", before + 1)
        drain = await self.operator.drain(kinds=SLOW, reason="the grid moves house")
        self.ledger.say(f"draining: {drain.running} analysis runs")
        waiting = await self._analysis()
        self.outside.release("grid")
        self.drained = await self.operator.drained(drain, timedelta(seconds=DEADLINE), lambda _: None)
        await self.ledger.ended(running)
        self.ledger.say("safe: nothing runs; what came meanwhile waits")
        await self._replace_worker()
        for kind in SLOW:
            await self.operator.resume(PauseScope.KIND, kind, "the grid has moved")
        self.ledger.say("resumed")
        await self.ledger.ended(waiting)

    async def _replace_worker(self) -> None:
        """The new one starts, then the old one is told to stop: it finishes first."""
        before = self.outside.called["mail"]
        self.outside.hold("mail")
        mail = await self._welcome("dan")
        await self.watch.calls("mail", before + 1)
        await self.home.worker()
        self.worker.stop()
        self.outside.release("mail")
        code = await self.worker.ended()
        await self.ledger.ended(mail)
        self.left = code, (await self.operator.job(mail)).attempt
        self.ledger.say(f"the old worker has sent its mail and left with {code}; the new one carries on")

    async def figures(self) -> None:
        self.ledger.chapter("The night in figures: as the queue, the server and the breakers tell it")
        sent = f'attempts_total{{kind="email",outcome="completed"}} {len(self.outside.delivered)}\n'
        await self.watch.metric(self.server.url, self.server.headers, sent)
        samples = {(one.metric, one.labels.get("kind")): one.value for one in await self.operator.metrics()}
        for row in await self.tables.rows("select type, status, jobs from job_queue_health order by type, status"):
            half, most = (samples.get((f"run_{share}_seconds", row["type"]), 0.0) for share in ("p50", "p95"))
            rate = samples.get(("error_rate", row["type"]), 0.0)
            count = f"{row['type']:<18} {row['status']:<10} {row['jobs']:>3}"
            self.ledger.say(f"{count}   p50 {_length(half)}, p95 {_length(most)}, {rate:.0%} failed")

    async def adds_up(self) -> bool:
        self.ledger.chapter("Does it add up?")
        checks = {**self._work(), **await self._trouble(), **await self._people(), **await self._rest()}
        return all([self.ledger.check(line, true) for line, true in checks.items()])  # noqa: C419 - all are told

    def _work(self) -> dict[str, bool]:
        assert self.family is not None
        tree = sorted((one.kind, one.depth) for one in self.family.members)
        found = {frozenset(indices) for indices in self.indices.values() if len(indices) == 1}
        mails = [str(mail["To"]) for mail in self.outside.delivered]
        return {
            "the change led to five jobs, in one tree": tree
            == [("analysis", 0), ("elevation", 0), ("email", 0), ("integration", 0), ("webhook", 1)],
            "none of the five quick kinds waited for an analysis": self.held_up == 0,
            "each site has an index of its own, whichever analysis found it": len(found) == len(SITES),
            "each of nine mails was sent once; the reminder, too": len(set(mails)) == len(mails) == 9,
        }

    async def _trouble(self) -> dict[str, bool]:
        failing = await self.tables.rows("select service_name, state from circuit_breakers where failure_count > 0")
        (trips,) = [one.breaker.trips for one in await self.operator.breakers() if one.breaker.name == GRID]
        pages = self.watch.pages_heard()
        return {
            "the breaker opened, and a probe closed it": failing == [] and trips >= 1,
            "the alert fired and was over, and the pager heard both": pages == ["alert.firing", "alert.cleared"],
        }

    async def _people(self) -> dict[str, bool]:
        assert self.letter is not None and self.drained is not None
        letter = await self.watch.resolved(self.letter)
        reviewed = letter.acknowledged_by == SHIFT and letter.new_job_id == self.requeued
        return {
            "the dead letter was acknowledged, requeued, and is resolved": reviewed,
            "the drain said when it was safe": self.drained.safe,
            "the old worker finished what it ran, at its first attempt": self.left == (0, 1),
        }

    async def _rest(self) -> dict[str, bool]:
        rows = await self.tables.rows("select status from jobs where type <> 'produce-reminders'")
        statuses = [row["status"] for row in rows]
        done = statuses.count("dead") == 1 and set(statuses) == {"completed", "dead"}
        return {"nothing is left undone, and one dead letter was all": done}

    # --- how

    async def _analysis(self, lipas_id: int = 12345) -> UUID:
        return (await self.jobs.enqueue("analysis", {"lipas-id": lipas_id}, max_attempts=PATIENT)).id

    async def _welcome(self, name: str) -> UUID:
        return (await self.jobs.enqueue("email", _mail(f"{name}@club.example", "welcome", name=name))).id


def _length(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "<1 ms"


def _mail(to: str, template: str, **data: str) -> dict[str, Any]:
    return {"to": to, "template": template, "data": data}
