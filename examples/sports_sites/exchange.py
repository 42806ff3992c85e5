"""Others hear of what changes: a copy is kept up to date, then the news goes out."""

from typing import Any, Literal

from dutiful import Context, Inject, Rules
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.services import Partners
from examples.sports_sites.sites import Sites

Operation = Literal["create", "update", "delete"]
NEWS = Rules(required={"lipas-ids": list[int], "operation-type": Operation, "initiated-by": str})


async def integration(
    ctx: Context, db: Sites = Inject("db"), partners: Partners = Inject("partners"), jobs: Jobs = Inject("jobs")
) -> None:
    lipas_id = ctx.payload["lipas-id"]
    async with ctx.breaker("partners"):
        await partners.sync(db.get(lipas_id))
    news = {"lipas-ids": [lipas_id], "operation-type": "update", "initiated-by": "register"}
    # By a key of this job's own, so that its second attempt tells nobody twice, even if the news has gone out by then.
    await jobs.enqueue("webhook", news, dedup_key=f"told-by-{ctx.public_id}", once=True)


async def webhook(ctx: Context, partners: Partners = Inject("partners")) -> None:
    news: dict[str, Any] = dict(ctx.payload)
    async with ctx.breaker("partners"):
        await partners.notify(ctx.public_id, news)
