"""Mail: sent under a breaker, and asked for when something is overdue."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from dutiful import Context, Inject
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.services import Emailer
from examples.sports_sites.sites import Sites

Address = Annotated[str, Meta(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)]
Template = Literal["welcome", "reminder", "site-changed"]


def email(
    ctx: Context, to: Address, template: Template, data: dict[str, Any], emailer: Emailer = Inject("emailer")
) -> None:
    """The message bears the job's id, so that one which a crash has sent twice is known as the same."""
    with ctx.breaker("email-service"):
        emailer.send(ctx.public_id, to, template, data)


async def produce_reminders(ctx: Context, db: Sites = Inject("db"), jobs: Jobs = Inject("jobs")) -> dict[str, int]:
    """One mail for each overdue reminder, however often this runs: asked for by a key, then ticked off."""
    overdue = db.overdue()
    for reminder in overdue:
        await jobs.enqueue(
            "email",
            {"to": reminder.address, "template": "reminder", "data": {"site": reminder.name}},
            dedup_key=f"reminder-{reminder.id}",
            once=True,  # the mail may be sent before the reminder is ticked off
        )
        db.produced(reminder.id)
    return {"reminders": len(overdue)}
