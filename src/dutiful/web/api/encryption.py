"""Encryption over HTTP: which keys are in use, and sealing anew with the current one.

A request has a deadline, and all tables are read. So an answer is about a part of them, and the next request goes on.
"""

from datetime import timedelta
from typing import Annotated

from fastapi import Query
from pydantic import Field, StringConstraints

from dutiful.core.errors import DataRefused, NotAllowed
from dutiful.core.principal import Role
from dutiful.operator.encryption import Position
from dutiful.web import listing
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.problems import field_problem
from dutiful.web.shapes import Ask, Reason, Shape

encryption = Operations("Encryption", "/admin/encryption", fleetwide=True)
rotation = Operations("Encryption", "/admin/encryption", role=Role.ADMIN, fleetwide=True)
WITHIN = timedelta(seconds=10)
KEYS, ROTATION = "keys", "rotation"
# It may contain the name of a step.
WalkCursor = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]


class KeysQuery(Ask):
    cursor: WalkCursor | None = Field(default=None, description="next_cursor of the previous answer.")


class KeyItem(Shape):
    key: str = Field(examples=["2026-11"], description="Its id; the key itself is never shown.")
    values: int = Field(description="How many values this part of the tables has that are sealed with it.")
    known: bool = Field(description="Whether this server has the key.")
    current: bool = Field(description="Whether this server seals with it.")
    places: dict[str, int] = Field(examples=[{"job.payload": 3}], description="The same by column.")


class Keys(Shape):
    keys: list[KeyItem]
    next_cursor: str | None = Field(description="Add up the answers until it is null.")


class RotateAsk(Reason):
    cursor: WalkCursor | None = Field(default=None, description="next_cursor of the previous answer.")


class RotateAnswer(Shape):
    key: str = Field(examples=["2026-11"], description="The current key of this server.")
    rows: int = Field(description="How many were sealed anew.")
    written_meanwhile: int = Field(description="How many others wrote at the same moment: rotate once more for them.")
    unreadable: dict[str, int] = Field(
        examples=[{"2026-05": 1}], description="Values that stay as they are, by the id of their key."
    )
    next_cursor: str | None = Field(description="Go on with it until it is null.")


@encryption.read("/")
async def list_keys(operator: OperatorDep, query: Annotated[KeysQuery, Query()]) -> Keys:
    """Count the values that each key has sealed; needs no keys."""
    found = await operator.encryption.count(_position(KEYS, query.cursor), WITHIN)
    return Keys(keys=[KeyItem.model_validate(use) for use in found.uses], next_cursor=_cursor(KEYS, found.next))


@rotation.act("/rotate/", "encryption.rotate")
async def rotate_keys(operator: OperatorDep, ask: RotateAsk) -> RotateAnswer:
    """Seal anew what has another key than the current one of this server, which needs all keys."""
    start = _position(ROTATION, ask.cursor)
    try:
        done = await operator.encryption.rotate(ask.reason, start=start, within=WITHIN)
    except DataRefused:
        raise NotAllowed(
            "the database does not let this server change jobs: let one rotate whose login owns the tables, or run "
            "`dutiful encryption rotate` with it"
        ) from None
    return RotateAnswer(
        key=done.key,
        rows=done.rows,
        written_meanwhile=done.written_meanwhile,
        unreadable=dict(done.unreadable),
        next_cursor=_cursor(ROTATION, done.next),
    )


def _position(list_name: str, cursor: str | None) -> Position | None:
    try:
        return None if cursor is None else listing.read_position(list_name, cursor)
    except listing.BadCursor as error:
        raise field_problem("cursor", str(error)) from None


def _cursor(list_name: str, position: Position | None) -> str | None:
    return None if position is None else listing.of_position(list_name, position)
