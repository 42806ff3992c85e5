"""Mail: sent through a breaker; reminders of overdue sites."""

import logging
from typing import Annotated, Any, Literal

from msgspec import Meta

from dutiful import Context, Inject, Rules
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.services import Emailer
from examples.sports_sites.sites import Sites

log = logging.getLogger("register")  # each line has the id and the correlation id of its job

# What a browser takes for an address: one, in ASCII, because not every mail server knows others.
ADDRESS = r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?$"
Address = Annotated[str, Meta(pattern=ADDRESS, max_length=254)]
Template = Literal["welcome", "reminder", "site-changed"]
MAIL = Rules(required=["to", "template"])  # the types are the handler's; with rules, SQL is held to them at once


def email(
    ctx: Context,
    to: Address,
    template: Template,
    data: dict[str, Any] | None = None,
    emailer: Emailer = Inject("emailer"),
) -> None:
    """Sends a message with the job's id, so that a duplicate after a crash is recognised."""
    log.info("sending email %s", template)
    with ctx.breaker("email-service"):
        emailer.send(ctx.public_id, to, template, data or {})


async def produce_reminders(ctx: Context, db: Sites = Inject("db"), jobs: Jobs = Inject("jobs")) -> dict[str, int]:
    """Enqueues one mail for each overdue reminder, once: by a unique key, and then marked as done."""
    overdue = db.overdue()
    log.info("reminding of %d sites", len(overdue))
    for reminder in overdue:
        await jobs.enqueue(
            "email",
            {"to": reminder.address, "template": "reminder", "data": {"site": reminder.name}},
            dedup_key=f"reminder-{reminder.id}",
            once=True,  # the mail may be sent before the reminder is marked as done
        )
        db.produced(reminder.id)
    return {"reminders": len(overdue)}
