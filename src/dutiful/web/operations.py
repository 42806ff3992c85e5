"""What the API offers: each operation with its path, who may, and what the audit trail calls it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from fastapi import params
from pydantic import BaseModel

from dutiful.acting import PauseScope
from dutiful.core.principal import Role
from dutiful.web.examples import example_of
from dutiful.web.problems import declared

F = TypeVar("F", bound=Callable[..., Any])
ALWAYS, WITH_BODY = {401, 403, 422, 429, 503}, {400, 408, 413, 415}

EVENT = {
    "type": "object",
    "description": "One server-sent event; its data is a JSON object.",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
}
SENT = 'event: started\ndata: {"type": "started", "data": {"attempt": 1}}\n\n'


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path; with an `action` it changes something, and a refusal of it is on record."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    tag: str
    role: Role
    fleetwide: bool = False  # about all tenants, so closed to a principal who has one
    action: str | None = None
    target: str | None = None  # the path's parameter that names what it is done to
    status: int = 200
    query: Mapping[str, bool] = {}  # its parameters, and whether each may be repeated
    stream: bool = False  # of events, not JSON

    def action_on(self, path: Mapping[str, Any]) -> str:
        """What the trail calls it; a pause goes by what is paused."""
        scope = path.get("scope")
        return (self.action or "").replace("{scope}", scope if scope in set(PauseScope) else "fleet")

    @property
    def template(self) -> str:
        """The path as people write it."""
        return self.path.replace(":path}", "}")  # of names, which may have slashes in them

    @property
    def answers(self) -> dict[int | str, dict[str, Any]]:
        statuses = ALWAYS | (WITH_BODY if self.method == "POST" else set())
        statuses |= {409} if self.action is not None else set()
        # What is named in a path, or by a filter of events, may not be there.
        statuses |= {404} if "{" in self.path or self.stream else set()
        told = declared(*sorted(statuses))
        if self.stream:
            return {200: {"content": {"text/event-stream": {"schema": EVENT, "example": SENT}}}, **told}
        example = example_of(get_type_hints(self.endpoint)["return"])
        return {self.status: {"content": {"application/json": {"example": example}}}, **told}


class Operations:
    """A group of them; `@group.read(…)` and `@group.act(…)` make functions its operations."""

    def __init__(self, tag: str, prefix: str = "/admin", *, role: Role = Role.MANAGER, fleetwide: bool = False) -> None:
        self._tag = tag
        self._prefix = prefix
        self._role = role
        self._fleetwide = fleetwide
        self.all: list[Operation] = []

    def read(self, path: str, *, stream: bool = False) -> Callable[[F], F]:
        return self._add("GET", path, stream=stream)

    def act(self, path: str, action: str, *, target: str | None = None, status: int = 200) -> Callable[[F], F]:
        return self._add("POST", path, action=action, target=target, status=status)

    def ask(self, path: str) -> Callable[[F], F]:
        """A read whose question is too long for a URL."""
        return self._add("POST", path)

    def _add(self, method: str, path: str, **more: Any) -> Callable[[F], F]:
        def add(endpoint: F) -> F:
            operation = Operation(
                method=method,
                path=self._prefix + path,
                endpoint=endpoint,
                tag=self._tag,
                role=self._role,
                fleetwide=self._fleetwide,
                query=_query_of(endpoint),
                **more,
            )
            self.all.append(operation)
            return endpoint

        return add


def _query_of(endpoint: Callable[..., Any]) -> dict[str, bool]:
    """The parameters that its URL may have: the fields of its model of a query."""
    for parameter in inspect.signature(endpoint).parameters.values():
        shape, *marks = get_args(parameter.annotation) or (None,)
        if any(isinstance(mark, params.Query) for mark in marks) and issubclass(shape, BaseModel):
            return {name: get_origin(field.annotation) is list for name, field in shape.model_fields.items()}
    return {}


def every(groups: Sequence[Operations]) -> list[Operation]:
    return [operation for group in groups for operation in group.all]
