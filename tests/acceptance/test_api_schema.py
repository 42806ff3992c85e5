"""What the API does is what its OpenAPI description says, whatever it is asked."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import uvicorn
from api import AdminApi, admin_api, public
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from uuid_utils.compat import uuid7

from dutiful import Dutiful
from dutiful.web import create_app
from dutiful.web.api import status
from dutiful.web.app import OPERATIONS
from dutiful.web.server import Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 10
ENDLESS = {"follow_events"}


class Served:
    """The admin API, served from a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.admin: AdminApi
        self.port = 0

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.should_exit = True
        self._thread.join(20)

    async def _serve(self) -> None:
        app = Dutiful(self._url)
        async with admin_api(app) as self.admin:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen(100)
                self.port = listener.getsockname()[1]
                config = uvicorn.Config(create_app(app), log_config=None, access_log=False, lifespan="off")
                self._server = Server(config, app)
                self._ready.set()
                await self._server.serve(sockets=[listener])


@pytest.fixture
def served(app_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(status, "LIFE", -1.0)
    with Served(app_url) as served:
        yield served


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)  # which refuses more than SQLite does
def test_every_operation_keeps_to_its_description(served: Served) -> None:
    address = f"http://127.0.0.1:{served.port}"
    schema = schemathesis.openapi.from_url(f"{address}/api/jobs/openapi.json")
    admin, headers = served.admin, {"authorization": f"Bearer {served.admin.tokens['admin']}"}
    known = {
        "dlq_id": [public(one) for letters in admin.dead.values() for one in letters],
        "job_id": [public(one) for one in (*admin.waiting.values(), *admin.done.values(), admin.dead["acme"][0])],
        "name": ["reports/nightly", "shop"],
        "run_id": [public(uuid7())],
        "supervisor": ["comms.send_email"],
        "token_id": [public(uuid7())],
    }
    answered = {
        operation.definition.raw["operationId"]: _examine(operation, known, headers)
        for operation in (_described(found) for found in schema.get_all_operations())
        if operation.definition.raw["operationId"] not in ENDLESS
    }
    names = {operation.endpoint.__name__ for operation in OPERATIONS} - ENDLESS
    assert set(answered) == names | {"livez", "readyz"}
    assert [name for name, statuses in answered.items() if statuses <= {400, 422}] == [], "they were understood, too"


def _described(found: Any) -> Any:
    return found.ok()


def _examine(operation: Any, known: dict[str, list[str]], headers: dict[str, str]) -> set[int]:
    """Sends all kinds of requests to it; returns the statuses of its answers."""
    answered = set()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), data=st.data())
    def examine(case: Any, data: st.DataObject) -> None:
        for parameter, values in known.items():
            if parameter in (case.path_parameters or {}) and data.draw(st.booleans()):
                case.path_parameters[parameter] = data.draw(st.sampled_from(values))
        if operation.definition.raw["operationId"] == "enqueue_job" and data.draw(st.booleans()):
            case.body = {**case.body, "kind": "greet", "payload": {"name": "Ada"}} if case.body else case.body
        # Which strings are drawn depends on the modules that are loaded: a breaker has to be accepted in any case.
        if operation.definition.raw["operationId"] == "open_breaker" and data.draw(st.booleans()):
            case.body = {"new": True, "open_for": "1m"}
        response = case.call(headers=headers)
        case.validate_response(response, checks=CHECKS)
        answered.add(response.status_code)

    examine()
    return answered


def test_the_description_has_names_tags_security_and_problems() -> None:
    described = create_app(Dutiful("sqlite:///nowhere.db")).openapi()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    seen: set[str] = set()
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            assert one["operationId"] not in seen and one["tags"] and (one["description"] or one["summary"]), path
            seen.add(one["operationId"])
            if not path.startswith("/api/"):
                continue
            assert one["security"] == [{"token": []}], path
            expected = {"401", "403", "422", "429", "503"}
            if method == "post":
                expected |= {"400", "413", "415"}
                expected |= set() if "preview" in path else {"409"}  # a preview changes nothing
            missing = expected - set(one["responses"])
            assert not missing, (path, missing)
            for code, answer in one["responses"].items():
                (content,) = answer["content"].values()
                assert content["example"], (path, code)
                if code >= "400":
                    assert set(answer["content"]) == {"application/problem+json"}, (path, code)
