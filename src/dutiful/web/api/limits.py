"""Limits over HTTP."""

from datetime import datetime

from pydantic import Field

from dutiful.operator.limits import facts
from dutiful.store.limits import LimitRecord
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.problems import Problem
from dutiful.web.shapes import Reason, Shape, Text

limits = Operations("Limits", "/admin/limits", fleetwide=True)


class KeyItem(Shape):
    key: str
    used: int
    waiting: int
    held_until: datetime | None = Field(description="Until then nothing starts, because a service has asked to wait.")


class LimitItem(Shape):
    name: str = Field(examples=["call:concurrency"])
    most: int = Field(description="How many jobs with one key run at once or, with `per_seconds`, start within that.")
    declared: int = Field(description="By the code; an operator may have set another number.")
    per_seconds: float | None
    burst: int | None = Field(description="How many may start together.")
    window: str | None = Field(description="How starts are counted: sliding, or fixed by the clock.")
    kinds: list[str]
    used: int
    waiting: int
    feedback: bool = Field(description="Whether a service that asks a handler to wait holds all jobs with its key.")
    keys: list[KeyItem] = Field(description="Those that most jobs wait for.")


class Limits(Shape):
    limits: list[LimitItem]


class LimitAsk(Reason):
    most: int | None = Field(
        default=None,
        ge=0,
        le=2_147_483_647,
        description="Left out: as the code declares, and waits that services asked for end.",
    )


@limits.read("/")
async def list_limits(operator: OperatorDep) -> Limits:
    """List the limits: how much of each is used, and which keys most jobs wait for."""
    return Limits(limits=[_item(one) for one in await operator.limits.all()])


@limits.act("/{name:path}/set/", "limit.set", target="name")
async def set_limit(operator: OperatorDep, name: Text, ask: LimitAsk) -> LimitItem:
    """Set how many jobs of a key may run, or start; it holds until it is set again, also after a deploy."""
    record = await operator.limits.set(name, ask.most, ask.reason)
    if record is None:
        raise Problem(404, f"there is no limit {name!r}")
    return _item(record)


def _item(record: LimitRecord) -> LimitItem:
    return LimitItem.model_validate(facts(record))
