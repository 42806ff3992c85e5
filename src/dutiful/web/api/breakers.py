"""Circuit breakers over HTTP: how they stand, and people's word on that."""

from datetime import datetime

from pydantic import Field

from dutiful.breaking import BreakerRecord
from dutiful.core.breaker import Breaker, BreakerState
from dutiful.core.duration import duration
from dutiful.operator.breakers import facts
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.problems import Problem
from dutiful.web.shapes import NO_REASON, Length, Reason, Shape, Text

breakers = Operations("Breakers", "/admin/breakers", fleetwide=True)


class BreakerItem(Shape):
    name: str = Field(examples=["email-service"])
    state: BreakerState
    failures: int = Field(description="In a row, while it is closed; when it is open, those that opened it.")
    failures_allowed: int = Field(description="So many open it.")
    successes: int = Field(description="Of probes, since it is half-open.")
    probes: int = Field(description="How many may probe at once, and have to go well.")
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
        default=None, examples=["10m"], description="For how long; as its policy says, if it is left out."
    )
    new: bool = Field(default=False, description="Also one that no app declares and nobody has used so far.")


NO_OPEN_ASK = OpenAsk()


@breakers.read("/")
async def list_breakers(operator: TheOperator) -> Breakers:
    """List the breakers: their state, what they have counted, and who waits for them."""
    return Breakers(breakers=[_item(one) for one in await operator.breakers()])


@breakers.act("/{name:path}/reset/", "breaker.reset", target="name")
async def reset_breaker(operator: TheOperator, name: Text, ask: Reason = NO_REASON) -> BreakerAnswer:
    """Close a breaker now and forget its failures: calls pass again, and jobs of its kinds that wait go on.

    Jobs that it refused inside their handlers ask again within about a second.
    """
    breaker = await operator.reset_breaker(name, ask.reason)
    if breaker is None:
        raise Problem(404, f"there is no breaker {name!r}")
    return _answer(breaker)


@breakers.act("/{name:path}/open/", "breaker.open", target="name")
async def open_breaker(operator: TheOperator, name: Text, ask: OpenAsk = NO_OPEN_ASK) -> BreakerAnswer:
    """Open a breaker now: no more calls, until its time is over and a probe goes well."""
    open_for = None if ask.open_for is None else duration(ask.open_for)
    return _answer(await operator.open_breaker(name, open_for, ask.reason, new=ask.new))


def _item(record: BreakerRecord) -> BreakerItem:
    return BreakerItem.model_validate(facts(record))


def _answer(breaker: Breaker) -> BreakerAnswer:
    return BreakerAnswer(name=breaker.name, state=breaker.state, open_until=breaker.open_until)
