"""Clients of external services: population grid, elevation, partners, mail."""

import smtplib
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

import httpx2

from dutiful import Fail
from examples.sports_sites.diversity import AREA, Cell
from examples.sports_sites.sites import Site

PATIENCE = 60.0  # seconds that a mail server may take
TEMPLATES = {
    "welcome": ("Welcome to the register", "Hello {name}, your account is ready."),
    "reminder": ("{site} needs a look", "The data of {site} was not confirmed for a year."),
    "site-changed": ("{site} has changed", "The change of {site} was sent to all partners."),
}


class Refused(Fail):
    """The other side refuses it permanently."""


@dataclass(frozen=True)
class Search:
    """The population grid."""

    http: httpx2.AsyncClient
    url: str

    async def cells(self, site: Site) -> list[Cell]:
        found = await self.http.get(f"{self.url}/grid", params={"east": site.east, "north": site.north, "radius": AREA})
        found.raise_for_status()
        return [Cell(**cell) for cell in found.json()]


@dataclass(frozen=True)
class Heights:
    http: httpx2.AsyncClient
    url: str

    async def elevation(self, site: Site) -> float:
        found = await self.http.get(f"{self.url}/elevation", params={"east": site.east, "north": site.north})
        found.raise_for_status()
        return float(found.json()["elevation"])


@dataclass(frozen=True)
class Partners:
    """Systems that keep a copy of the register, or are notified of changes."""

    http: httpx2.AsyncClient
    url: str

    async def sync(self, site: Site) -> None:
        """Updates the copy; idempotent."""
        body = {"name": site.name, "type": site.type, "east": site.east, "north": site.north}
        (await self.http.put(f"{self.url}/copy/{site.lipas_id}", json=body)).raise_for_status()

    async def notify(self, message_id: str, news: dict[str, Any]) -> None:
        """Sends a message, whose id shows the receiver a duplicate."""
        answer = await self.http.post(f"{self.url}/utp", json=news, headers={"webhook-id": message_id})
        answer.raise_for_status()


@dataclass(frozen=True)
class Emailer:
    port: int

    def send(self, message_id: str, to: str, template: str, data: dict[str, Any]) -> None:
        """Sends a mail, and blocks meanwhile. A permanent refusal, such as a missing mailbox, is not retried."""
        subject, text = TEMPLATES[template]
        data = {"name": "there", **data}
        message = EmailMessage()
        message["Message-ID"] = f"<{message_id}@register.example>"
        message["From"] = "register@register.example"
        message["To"] = to
        try:
            message["Subject"] = subject.format_map(data)
            message.set_content(text.format_map(data))
        except KeyError as error:
            raise Refused(f"template {template} needs {error}, which is missing in data") from None
        except ValueError as error:  # a line break in the subject, for example
            raise Refused(f"the mail cannot be written: {error}") from None
        with smtplib.SMTP("127.0.0.1", self.port, timeout=PATIENCE) as server:
            server.send_message(message)
