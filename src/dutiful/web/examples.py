"""An example of every answer, made of its shape: so none is forgotten, and none tells of a field that is gone."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

MOMENT = "2030-01-01T10:00:00Z"
# What people would find in fields of these names; where a shape has examples of its own, they come first.
NAMED: dict[str, Any] = {
    "action": "dead_letter.reprocess",
    "address": "10.0.0.7",
    "attempt": 1,
    "by": "ada",
    "category": "ingestion",
    "broken": None,
    "code": "waits_its_turn",
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
    "sentence": "waits for its turn",
    "state": "failed",
    "status": 200,
    "target": "01K2GV5-GYMFSFR-N6RC3MQ-3YJJV79",
    "tenant": "acme",
    "timezone": "Europe/Berlin",
    "token": "dtf_…",
    "webhook": "shop",
}


@cache  # each operation has two spellings, and may be served under several prefixes
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
