"""Circuit breakers over HTTP."""

from datetime import datetime

from pydantic import Field

from dutiful.core.breaker.state import Breaker, BreakerState
from dutiful.core.duration import duration
from dutiful.operator.breakers import facts
from dutiful.store.breakers import BreakerRecord
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.problems import Problem
from dutiful.web.shapes import NO_REASON, Length, Reason, Shape, Text

breakers = Operations("Breakers", "/admin/breakers", fleetwide=True)


class BreakerItem(Shape):
    name: str = Field(examples=["email-service"])
    state: BreakerState
    failures: int = Field(description="In a row, while it is closed; when it is open, those that opened it.")
    failures_allowed: int = Field(description="This many open it.")
    successes: int = Field(description="Successful probes since it is half-open.")
    probes: int = Field(description="How many may probe at once, and have to succeed.")
    probing: int
    open_seconds: float = Field(description="For how long it opens.")
    trips: int
    last_failure_at: datetime | None
    opened_at: datetime | None
    open_until: datetime | None
    half_opened_at: datetime | None
    kinds: list[str] = Field(description="Whose jobs wait while it is not closed.")
    waiting: int


class Breakers(Shape):
    breakers: list[BreakerItem]


class BreakerAnswer(Shape):
    name: str = Field(examples=["email-service"])
    state: BreakerState
    open_until: datetime | None


class OpenAsk(Reason):
    open_for: Length | None = Field(
        default=None, examples=["10m"], description="For how long; by default as its policy says."
    )
    new: bool = Field(default=False, description="Also one that no app declares and that was never used.")


NO_OPEN_ASK = OpenAsk()


@breakers.read("/")
async def list_breakers(operator: OperatorDep) -> Breakers:
    """List the breakers: their state, their counts, and how many jobs wait for them."""
    return Breakers(breakers=[_item(one) for one in await operator.breakers.all()])


@breakers.act("/{name:path}/reset/", "breaker.reset", target="name")
async def reset_breaker(operator: OperatorDep, name: Text, ask: Reason = NO_REASON) -> BreakerAnswer:
    """Close a breaker now and clear its failures: calls pass again, and waiting jobs of its kinds continue.

    Jobs that it rejected inside their handlers continue within about a second.
    """
    breaker = await operator.breakers.reset(name, ask.reason)
    if breaker is None:
        raise Problem(404, f"there is no breaker {name!r}")
    return _answer(breaker)


@breakers.act("/{name:path}/open/", "breaker.open", target="name")
async def open_breaker(operator: OperatorDep, name: Text, ask: OpenAsk = NO_OPEN_ASK) -> BreakerAnswer:
    """Open a breaker now: no calls until its time is over and a probe succeeds."""
    open_for = None if ask.open_for is None else duration(ask.open_for)
    return _answer(await operator.breakers.open(name, open_for, ask.reason, new=ask.new))


def _item(record: BreakerRecord) -> BreakerItem:
    return BreakerItem.model_validate(facts(record))


def _answer(breaker: Breaker) -> BreakerAnswer:
    return BreakerAnswer(name=breaker.name, state=breaker.state, open_until=breaker.open_until)
