"""The register to use in a browser, and the world outside it."""

from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from examples.schemas import own_schema
from examples.serving import for_ever, serving
from examples.sports_sites.config import FAST_THREADS, GENERAL_THREADS, Config
from examples.sports_sites.fake_services import FakeServices
from examples.sports_sites.sample_data import fill
from examples.sports_sites.service import sports_app
from examples.sports_sites.site import sports_site
from examples.sports_sites.views import SCHEMA, views


async def serve(console: Console, folder: Path, database_url: str, port: int) -> None:
    """Everything in one process, until Ctrl-C."""
    async with FakeServices().open() as addresses, own_schema(database_url, "sports") as schema:
        config = Config(
            folder=folder,
            services=addresses.services,
            smtp_port=addresses.smtp_port,
            fast_threads=FAST_THREADS,
            general_threads=GENERAL_THREADS,
        )
        fill(folder)
        # A person does not want to wait for minutes until a breaker lets a probe through, or until the next attempt.
        app = sports_app(config, database_url, schema=schema, breaker_failures=2, breaker_open_for="5s", retry_max="5s")
        await app.migrate()
        async with app, app.embedded(), serving(sports_site(app, config), port) as url:
            console.print(f"[bold]{url}[/] is the register: edit a site, and see what follows. Ctrl-C ends it.")
            await for_ever()


async def install(console: Console, config: Config, database_url: str | None) -> None:
    """Creates Dutiful's tables, if there are none, and the register's views of them."""
    app = sports_app(config, database_url)
    await app.migrate()
    async with app, views(app) as tables:
        await tables.install(config.metrics_days)
    where = f"in the schema {SCHEMA}" if app.settings.database_url.startswith("postgres") else "in the file of jobs"
    console.print(f"The views are {where}: jobs, dead_letter_jobs, job_queue_health and others.", soft_wrap=True)


async def world(console: Console, config: Config) -> None:
    """The grid, elevation, partners and mail server, at the addresses of the config, until Ctrl-C."""
    async with FakeServices(config.pager_secret).open(urlsplit(config.services).port or 80, config.smtp_port):
        console.print(f"The services are at {config.services}, SMTP is at port {config.smtp_port}. Ctrl-C ends it.")
        await for_ever()
