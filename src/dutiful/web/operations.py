"""The operations of the API: path, required role, audited action, and an example of the answer."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from fastapi import params
from pydantic import BaseModel

from dutiful.core.principal import Role
from dutiful.store.control import PauseScope
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
    """One method of one path; with an `action` it changes something, and its refusals are audited."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    tag: str
    role: Role
    fleetwide: bool = False  # about all tenants, so closed to a tenant's principal
    action: str | None = None
    target: str | None = None  # the path parameter that names the target
    status: int = 200
    query: Mapping[str, bool] = {}  # its parameters, and which may be repeated
    stream: bool = False  # of events, not JSON

    def action_on(self, path: Mapping[str, Any]) -> str:
        """The action's name in the audit trail; that of a pause contains its scope."""
        scope = path.get("scope")
        return (self.action or "").replace("{scope}", scope if scope in set(PauseScope) else "fleet")

    @property
    def template(self) -> str:
        """The path for documentation."""
        return self.path.replace(":path}", "}")  # a name may contain slashes

    @property
    def answers(self) -> dict[int | str, dict[str, Any]]:
        statuses = ALWAYS | (WITH_BODY if self.method == "POST" else set())
        statuses |= {409} if self.action is not None else set()
        # What a path or a filter of events names may not exist.
        statuses |= {404} if "{" in self.path or self.stream else set()
        problems = declared(*sorted(statuses))
        if self.stream:
            return {200: {"content": {"text/event-stream": {"schema": EVENT, "example": SENT}}}, **problems}
        example = example_of(get_type_hints(self.endpoint)["return"])
        return {self.status: {"content": {"application/json": {"example": example}}}, **problems}


class Operations:
    """A group of operations; `@group.read(…)` and `@group.act(…)` add functions to it."""

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
        """A read whose parameters are too long for a URL."""
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
    """The query parameters: the fields of the model that is marked as Query."""
    for parameter in inspect.signature(endpoint).parameters.values():
        shape, *marks = get_args(parameter.annotation) or (None,)
        if any(isinstance(mark, params.Query) for mark in marks) and issubclass(shape, BaseModel):
            return {name: get_origin(field.annotation) is list for name, field in shape.model_fields.items()}
    return {}


def flatten(groups: Sequence[Operations]) -> list[Operation]:
    return [operation for group in groups for operation in group.all]


# --- examples of answers, made from their shapes, so that none is missing or out of date

MOMENT = "2030-01-01T10:00:00Z"
# Examples by field name; examples of the shape itself take precedence.
NAMED: dict[str, Any] = {
    "action": "dead_letter.reprocess",
    "address": "10.0.0.7",
    "attempt": 1,
    "by": "ada",
    "category": "ingestion",
    "backend_job_id": "01937b6a-33e5-7d04-8b6f-4b1f0c6b3f12:1",
    "broken": None,
    "code": "waiting_for_slot",
    "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
    "created_by": "ada",
    "event": "completed",
    "error_class": "non_retryable",
    "error_message": "Validation error: invalid payload",
    "error_type": "ValueError",
    "expression": "0 3 * * *",
    "finished": {"completed": 120, "failed": 2},
    "fingerprint": "9f86d081884c7d65",
    "head_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "host": "worker-1",
    "idempotency_key": "email_fetch_conn_456_msg_789",
    "job_type": "email_ingestion_fetch",
    "kind": "email_ingestion_fetch",
    "lane": "general",
    "live": {"ready": 3, "running": 1},
    "message": "120 of 300 messages",
    "name": "nightly",
    "next_cursor": "vN6xQm1hAZihssPUfl-KmwwdLj9KWw",
    "notes": "Fixed validation issue in source data, safe to reprocess",
    "payload": {"connection_id": 456},
    "percent": 40.0,
    "pid": 4711,
    "principal": "ada",
    "priority": 100,
    "problem": "its event or its seal was changed",
    "queue": "default",
    "reason": "the mail server is down",
    "resolution": "completed",
    "result": {"messages": 12},
    "sentence": "waits for a slot: about 3 jobs are ahead of it",
    "state": "failed",
    "status": 200,
    "target": "01K2GV5-GYMFSFR-N6RC3MQ-3YJJV79",
    "tenant": "acme",
    "timezone": "Europe/Berlin",
    "token": "dtf_…",
    "webhook": "shop",
}


@cache  # each operation has two paths, and may be served under several prefixes
def example_of(shape: type[BaseModel]) -> Any:
    schema = shape.model_json_schema(mode="serialization")
    return _example(schema, schema.get("$defs", {}), "")


def _example(schema: Mapping[str, Any], shapes: Mapping[str, Any], name: str) -> Any:
    if "$ref" in schema:
        return _example(shapes[schema["$ref"].rpartition("/")[2]], shapes, name)
    if "properties" in schema:
        made = {field: _example(one, shapes, field) for field, one in schema["properties"].items()}
        return {**made, **schema.get("examples", [{}])[0]}
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    choices = [one for one in schema.get("anyOf", []) if one.get("type") != "null"]
    if name in NAMED and not any("$ref" in one for one in choices):
        return NAMED[name]
    return _example(choices[0], shapes, name) if choices else _plain(schema, shapes, name)


def _plain(schema: Mapping[str, Any], shapes: Mapping[str, Any], name: str) -> Any:
    match schema:
        case {"const": only}:
            return only
        case {"type": "array"}:
            return [_example(schema.get("items", {}), shapes, name.removesuffix("s"))]
        case {"type": "object"}:
            values = schema.get("additionalProperties")
            keys = schema.get("propertyNames", {})
            key = _example(keys, shapes, "") if keys else name.removeprefix("by_")
            return {NAMED.get(key, key): _example(values, shapes, "")} if isinstance(values, dict) and values else {}
        case {"type": "integer" | "number"}:
            return 1
        case {"type": "boolean"}:
            return True
        case {"type": "string", "format": "date-time"}:
            return MOMENT
        case {"type": "string", "format": "uuid"}:
            return "0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
        case {"type": "string"}:
            return name.replace("_", " ")
        case _:
            return None
