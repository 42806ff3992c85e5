"""The platform to use in a browser, and the world outside it."""

from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from examples.practice.fake_services import FakeServices
from examples.practice.firms import Firms
from examples.practice.platform import Addresses
from examples.practice.sample_data import add_mail_and_calendars, add_people, create_sample_data
from examples.practice.service import practice_app
from examples.practice.site import practice_site
from examples.schemas import own_schema
from examples.serving import for_ever, serving


async def serve(console: Console, folder: Path, database_url: str, port: int) -> None:
    """Everything in one process, until Ctrl-C."""
    firms, services = Firms(folder), FakeServices()
    add_people(firms)
    for firm_id in (123, 456):
        create_sample_data(firms, firm_id)
    async with services.open() as addresses, own_schema(database_url, "practice") as schema:
        app = practice_app(database_url, firms, addresses, schema=schema)
        await app.migrate()
        async with app, app.embedded(), serving(practice_site(app, firms, addresses), port) as url:
            console.print(f"[bold]{url}[/] is the firm's desk: sign in as mary, password tea-at-four. Ctrl-C ends it.")
            await for_ever()


async def world(console: Console, addresses: Addresses) -> None:
    """The mail servers, calendars and SMTP server that main:app expects, until Ctrl-C."""
    services = FakeServices()
    add_mail_and_calendars(services)
    async with services.open(urlsplit(addresses.mail).port or 80, addresses.smtp_port):
        console.print(f"Mail is at {addresses.mail}, SMTP is at port {addresses.smtp_port}. Ctrl-C ends it.")
        await for_ever()
