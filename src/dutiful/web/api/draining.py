"""Draining over HTTP: pause something, and ask until nothing of it runs."""

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import Field

from dutiful.acting import PauseScope
from dutiful.duties import Process
from dutiful.operator.drain import Part as Drained
from dutiful.web.api.fleet import Paused
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import Ask, LongText, PublicId, Shape, Texts

draining = Operations("Fleet", "/admin/drain", fleetwide=True)


class DrainQuery(Ask):
    kinds: Texts = Field(default=[], description="Of what is paused, these only; none named: all of it.")
    queues: Texts = Field(default=[])
    lanes: Texts = Field(default=[])
    everything: bool = Field(default=False, description="Every lane; whatever runs counts.")
    gone: Texts = Field(default=[], description="Silent workers whose processes are known to have ended.")


class DrainAsk(Ask):
    kinds: Texts = Field(default=[], examples=[["email_ingestion_fetch"]])
    queues: Texts = Field(default=[], examples=[["default"]])
    lanes: Texts = Field(default=[], examples=[["general"]])
    everything: bool = Field(default=False, description="Every lane that there is or will be; instead of the others.")
    gone: Texts = Field(default=[], description="Silent workers whose processes are known to have ended.")
    reason: LongText | None = Field(default=None, examples=["the mail server moves"])


class Holdup(Shape):
    job_id: PublicId
    kind: str
    queue: str
    started_at: datetime | None
    worker: str
    alive: bool
    remedy: str = Field(examples=["let it end"])


class Silent(Shape):
    worker: str = Field(examples=["web-1:4711"])
    since: datetime
    process: Process
    remedy: str = Field(examples=["be sure that its process has ended"])


class Part(Shape):
    scope: PauseScope
    name: str


class DrainState(Shape):
    """`safe`: nothing runs, and nothing will before a resume; until then, ask again.

    `not_paused` is what was asked for and can start: somebody has resumed it, so it will not get safe. Nor will it if
    there are no `pauses`, for then nothing is drained.
    """

    safe: bool
    running: int
    pauses: list[Paused]
    holdups: list[Holdup]
    unheard: list[str] = Field(description="Workers that have not said since the pause what they run.")
    silent: list[Silent] = Field(description="Workers that say nothing any more, and may go on all the same.")
    unknown: list[Part] = Field(description="Queues that are served and that nobody has named: misspelt, perhaps.")
    not_paused: list[str] = Field(examples=[["kind email_ingestion_fetch"]])


@draining.act("/", "fleet.drain")
async def start_drain(operator: TheOperator, ask: DrainAsk) -> DrainState:
    """Pause kinds, queues, lanes or everything, and tell what of it still runs; a resume lets it go on."""
    state = await operator.drain(
        kinds=ask.kinds, queues=ask.queues, lanes=ask.lanes, everything=ask.everything, reason=ask.reason, gone=ask.gone
    )
    return DrainState.model_validate(state)


@draining.read("/")
async def get_drain(operator: TheOperator, query: Annotated[DrainQuery, Query()]) -> DrainState:
    """Tell what still runs of all that is paused, or of some of it."""
    named = ((PauseScope.KIND, query.kinds), (PauseScope.QUEUE, query.queues), (PauseScope.LANE, query.lanes))
    parts = [Drained(scope, name) for scope, names in named for name in names]
    state = await operator.draining(parts or None, everything=query.everything, gone=query.gone)
    return DrainState.model_validate(state)
