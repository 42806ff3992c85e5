"""Changes are sent to partners: their copy is updated, then they are notified."""

import logging
from typing import Any, Literal

from dutiful import Context, Inject, Rules
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.services import Partners
from examples.sports_sites.sites import Sites

log = logging.getLogger("register")

Operation = Literal["create", "update", "delete"]
NEWS = Rules(required={"lipas-ids": list[int], "operation-type": Operation, "initiated-by": str})


async def integration(
    ctx: Context, db: Sites = Inject("db"), partners: Partners = Inject("partners"), jobs: Jobs = Inject("jobs")
) -> None:
    lipas_id = ctx.payload["lipas-id"]
    log.info("sending site %d to the partners", lipas_id)
    async with ctx.breaker("partners"):
        await partners.sync(db.get(lipas_id))
    news = {"lipas-ids": [lipas_id], "operation-type": "update", "initiated-by": "register"}
    # With a key of this job, so that its second attempt does not notify twice.
    await jobs.enqueue("webhook", news, dedup_key=f"news-of-{ctx.public_id}", once=True)


async def webhook(ctx: Context, partners: Partners = Inject("partners")) -> None:
    news: dict[str, Any] = dict(ctx.payload)
    log.info("notifying the partners of sites %s", news["lipas-ids"])
    async with ctx.breaker("partners"):
        await partners.notify(ctx.public_id, news)
