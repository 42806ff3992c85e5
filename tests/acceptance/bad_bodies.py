"""Bodies that JSON readers let through, and that an API still has to refuse."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

VALUES = ('"\\ud800"', '["\\ud800"]', "NaN", "Infinity", "-1e999", '{"\\ud800": NaN}')


async def check_refusals(client: httpx2.AsyncClient, method: str, path: str, body: Mapping[str, Any]) -> None:
    """Every field is refused by its name when it has a value that no text or number of JSON can be."""
    for field, content in _spoilt(body):
        answer = await client.request(method, path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 422, f"{path} {content!r}: {answer.status_code} {answer.text}"
        assert field in answer.text, answer.text


def _spoilt(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field in body:
        for value in VALUES:
            yield field, json.dumps({**body, field: "SPOILT"}).replace('"SPOILT"', value)
