"""Fair shares over HTTP."""

from pydantic import Field

from dutiful.core.shares import HEAVIEST
from dutiful.store.shares import ShareRecord
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.shapes import Reason, Shape, Text

shares = Operations("Shares", "/admin/shares", fleetwide=True)


class ShareItem(Shape):
    tenant: str | None = Field(description="Left empty: jobs without a tenant.")
    weight: int = Field(description="How many slots of a fair lane it has for one of others, while its jobs wait.")
    running: int


class Shares(Shape):
    shares: list[ShareItem]


class ShareAsk(Reason):
    weight: int | None = Field(default=None, ge=1, le=HEAVIEST, description="Left out: 1, as others.")


@shares.read("/")
async def list_shares(operator: OperatorDep) -> Shares:
    """List the tenants that run jobs, or whose weight was set, those that run most first."""
    return Shares(shares=[_item(one) for one in await operator.shares.all()])


@shares.act("/{tenant:path}/set/", "share.set", target="tenant")
async def set_share(operator: OperatorDep, tenant: Text, ask: ShareAsk) -> ShareItem:
    """Set the weight of a tenant in fair lanes; workers learn it when they next look for jobs."""
    return _item(await operator.shares.set(tenant, ask.weight, ask.reason))


def _item(record: ShareRecord) -> ShareItem:
    return ShareItem(tenant=record.tenant, weight=record.weight, running=record.running)
