"""What the API offers: each operation with its path, who may, and what the audit trail calls it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import msgspec
from fastapi import params
from pydantic import BaseModel

from dutiful.core.principal import Role
from dutiful.web.problems import declared

F = TypeVar("F", bound=Callable[..., Any])
ALWAYS, WITH_BODY = {401, 403, 422, 429, 503}, {400, 413, 415}

EVENT = {
    "type": "object",
    "description": "One server-sent event; its data is a JSON object.",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
}


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
    query: frozenset[str] = frozenset()
    stream: bool = False  # of events, not JSON

    @property
    def template(self) -> str:
        """The path as people write it."""
        return self.path.replace(":path}", "}")  # of names, which may have slashes in them

    @property
    def problems(self) -> dict[int | str, dict[str, Any]]:
        statuses = ALWAYS | (WITH_BODY if self.method == "POST" else set())
        statuses |= {409} if self.action is not None else set()
        # What is named in a path, or by a filter of events, may not be there.
        statuses |= {404} if "{" in self.path or self.stream else set()
        told = declared(*sorted(statuses))
        return {200: {"content": {"text/event-stream": {"schema": EVENT}}}, **told} if self.stream else told


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
                query=_query_names(endpoint),
                **more,
            )
            self.all.append(operation)
            return endpoint

        return add


def _query_names(endpoint: Callable[..., Any]) -> frozenset[str]:
    """The parameters that its URL may have: the fields of its model of a query."""
    for parameter in inspect.signature(endpoint).parameters.values():
        shape, *marks = get_args(parameter.annotation) or (None,)
        if any(isinstance(mark, params.Query) for mark in marks) and issubclass(shape, BaseModel):
            return frozenset(shape.model_fields)
    return frozenset()


def every(groups: Sequence[Operations]) -> list[Operation]:
    return [operation for group in groups for operation in group.all]
