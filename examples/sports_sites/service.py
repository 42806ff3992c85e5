"""The register's app: its kinds in two lanes, breakers of external services, and resources."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx2

from dutiful import Dutiful
from examples.sports_sites.cleanup import AGE, cleanup_jobs
from examples.sports_sites.config import Config
from examples.sports_sites.exchange import NEWS, integration, webhook
from examples.sports_sites.jobs import ATTEMPTS, Jobs
from examples.sports_sites.mail import MAIL, email, produce_reminders
from examples.sports_sites.places import SITE, analysis, elevation
from examples.sports_sites.services import Emailer, Heights, Partners, Search
from examples.sports_sites.sites import Site, Sites

FAST = "fast"  # the queue of jobs that take less than 30 seconds, with a lane of its own
QUICK = f"{FAST}=30s"
PROFILE = "register"  # if no other is chosen
PATIENCE = 600.0  # seconds; the timeout of an attempt is shorter
KEPT_DAYS = 7


def sports_app(config: Config, database_url: str | None = None, **settings: Any) -> Dutiful:
    """Stores jobs at `database_url`, and sites in the config's folder."""
    # The kind cleanup-jobs deletes finished jobs.
    own: dict[str, Any] = {
        "profile": config.profile or PROFILE,
        "lanes": config.lanes(),
        "retention": "never",
        "retry_attempts": ATTEMPTS,
        "webhook_networks": ("127.0.0.0/8",),
    }
    app = Dutiful(database_url, **own)
    app.configure(**settings)
    # In profiles, because an argument would overrule the two minutes of the profile production.
    app.profile(PROFILE, timeouts=QUICK)
    app.profile("development", kinds=("email", "analysis", "elevation"), timeouts=QUICK)
    for service in ("email-service", "population-grid", "elevation-service", "partners"):
        app.breaker(service)
    _kinds(app)
    _resources(app, config)
    app.schedule(app.kind("produce-reminders"), every=config.reminders_every, name="reminders")
    app.schedule(app.kind("cleanup-jobs"), "0 3 * * *", name="cleanup", payload={"days-old": KEPT_DAYS})
    app.alert(
        "mail-late", "oldest_pending_seconds", above=60, clear=10, hold="1m", where={"queue": FAST},
        summary="Quick jobs have waited for over a minute",
    )  # fmt: skip
    if config.pager_secret is not None:
        app.webhook("pager", f"{config.services}/pager", alerts=True, secrets=config.pager_secret)
    return app


def _kinds(app: Dutiful) -> None:
    app.job(name="email", queue=FAST, rules=MAIL)(email)
    app.job(name="produce-reminders", queue=FAST)(produce_reminders)
    app.job(name="cleanup-jobs", queue=FAST, rules=AGE)(cleanup_jobs)
    app.job(name="integration", queue=FAST, rules=SITE)(integration)
    app.job(name="webhook", queue=FAST, rules=NEWS)(webhook)
    app.job(name="analysis", timeout="10m", rules=SITE, breaker="population-grid")(analysis)
    app.job(name="elevation", timeout="5m", rules=SITE)(elevation)


def _resources(app: Dutiful, config: Config) -> None:
    @app.resource
    def db() -> Iterator[Sites]:
        sites = Sites(config.folder)
        yield sites
        sites.close()

    @app.resource
    def emailer() -> Emailer:
        return Emailer(config.smtp_port)

    @app.resource
    def jobs() -> Jobs:
        return Jobs(app)

    @app.resource
    async def search() -> AsyncIterator[Search]:
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:
            yield Search(http, config.services)

    @app.resource
    async def height_of() -> AsyncIterator[Callable[[Site], Awaitable[float]]]:
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:
            yield app.breakers["elevation-service"](Heights(http, config.services).elevation)

    @app.resource
    async def partners() -> AsyncIterator[Partners]:
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:
            yield Partners(http, config.services)
