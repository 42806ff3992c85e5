"""Access over HTTP: every operation is called as every role, tenant and anonymously.

The operations are those that the application really serves; one that has no sample here fails the test.
"""

import json
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from api import TENANTS, AdminApi, admin_api, public
from uuid_utils.compat import uuid7

from dutiful import Dutiful
from dutiful.core.review.audit import AuditOutcome
from dutiful.core.review.state import ReviewAct
from dutiful.operator import Operator
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.web import Role
from dutiful.web.api import status
from dutiful.web.app import OPERATIONS, create_app
from dutiful.web.operations import Operation

ACTS = [operation for operation in OPERATIONS if operation.action is not None]
ADMIN = [operation for operation in OPERATIONS if operation.path.startswith("/admin/")]
BODIES: dict[str, Any] = {
    "preview_bulk": {"act": "discard", "filter": {}},
    "start_bulk": {"act": "acknowledge", "filter": {"job_type": "nothing"}},
    "start_drain": {"lanes": ["general"]},
    "send_event": {"name": "paid", "key": "7"},
    "enqueue_job": {"kind": "greet", "payload": {"name": "Ada"}},
    "create_token": {"name": "eve", "role": "viewer"},
    "release_jobs": {"older_than": "1h"},
    "open_breaker": {"new": True},
}
# Where the samples name nothing that exists, a job that does not run, or a server without keys; and what can be done
# only once.
REFUSED = {
    "release_job": 409, "open_job": 409, "rotate_keys": 409, "reset_breaker": 404, "set_limit": 404,
    "redeliver_webhook_post": 404, "revoke_token": 404,
}  # fmt: skip
REFUSED_AGAIN = {
    "stop_bulk": 409,
    "reprocess_dead_letter": 409,
    "discard_dead_letter": 409,
    "acknowledge_dead_letter": 409,
    "resolve_dead_letter": 409,
    "fail_job": 409,
    "retry_tree": 409,
    "remove_schedule": 404,
    "remove_webhook": 404,
}
# Only Postgres has supervisors; there is none in this one.
SUPERVISORS = {
    "postgres": {"list_processes": 404, "show_process": 404},
    "sqlite": {"list_supervisors": 422, "list_processes": 422, "show_process": 422},
}
PARAMETERS = {
    "correlation_id", "dlq_id", "job_id", "run_id", "scope", "name", "post_id", "token_id", "supervisor", "task_id",
    "tenant",
}  # fmt: skip


@pytest.fixture
async def admin(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminApi]:
    monkeypatch.setattr(status, "LIFE", -1.0)  # a stream ends after its snapshot
    async with admin_api(app, trusted_proxies=["127.0.0.1"]) as admin:
        await start_runs(admin)
        yield admin


async def start_runs(admin: AdminApi) -> None:
    for tenant in TENANTS:
        none = DeadLetterFilter(tenant=tenant, kinds=["nothing"])
        run = await Operator(admin.client, "root").bulk.start(ReviewAct.DISCARD, none)
        admin.runs[tenant] = run.id


def sample(admin: AdminApi, operation: Operation, tenant: str) -> tuple[str, str]:
    """Method and path of one request, about something of the tenant."""
    name = operation.endpoint.__name__
    dead, other = admin.dead.get(tenant, [uuid7(), uuid7()])
    values = {
        "correlation_id": public(dead),
        "dlq_id": public(dead),
        "job_id": public(other if "status" in name else admin.waiting.get(tenant, other)),
        "run_id": public(admin.runs.get(tenant, other)),
        "name": "shop" if "webhook" in name else "reports%2Fnightly",
        "scope": "queue",
        "post_id": str(uuid4()),
        "token_id": public(uuid7()),
        "supervisor": "comms.send_email",
        "task_id": "7",
        "tenant": tenant,
    }
    assert set(values) == PARAMETERS
    query = f"?job={public(dead)}" if name == "follow_events" else ""
    return operation.method, operation.template.format(**values) + query


async def ask(admin: AdminApi, operation: Operation, who: str | None, tenant: str = "acme", **more: Any) -> Any:
    method, path = sample(admin, operation, tenant)
    if method == "POST" and not more:
        more = {"json": BODIES.get(operation.endpoint.__name__, {})}
    return await admin.ask(method, path, who, **more)


def test_every_route_that_is_served_is_an_operation_with_its_gates() -> None:
    paths = create_app(Dutiful("sqlite:///nowhere.db")).openapi()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    known = {(operation.method, f"/api/jobs{operation.template}") for operation in OPERATIONS}
    assert served == known | {("GET", "/livez"), ("GET", "/readyz")}
    assert all(operation.role.reaches(Role.MANAGER) for operation in ADMIN)
    assert all(
        operation.method == "GET" or operation.action for operation in OPERATIONS if "preview" not in operation.path
    )


@pytest.mark.req("W53", "W54", "W55")
async def test_each_check_comes_before_each_operation(admin: AdminApi) -> None:
    """A caller without credentials gets 401; one without the role of staff, manager or admin gets 403."""
    before = await admin.facts()
    refused = 0
    for number, operation in enumerate(OPERATIONS):
        name = operation.endpoint.__name__
        for who in (None, "wrong", "expired", "revoked", "Basic 1", ""):
            strange = {"x-forwarded-for": f"10.0.0.{number}"}  # or else their number would be held against them
            answer = await ask(admin, operation, who, headers=strange, content=b"{}")
            assert answer.status_code == 401, (name, who)
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for role in Role:
            if role.reaches(operation.role):
                continue
            answer = await ask(admin, operation, role.value)
            assert answer.status_code == 403, (name, role)
            problem = answer.json()
            assert problem["detail"].startswith("this is for staff" if role is Role.VIEWER else "this needs"), problem
            refused += operation.action is not None
            for tenant in TENANTS:
                assert (await ask(admin, operation, f"{tenant} {role}")).status_code == 403
                refused += operation.action is not None
    assert await admin.facts() == before, "nothing was changed"
    assert len(await admin.audit(AuditOutcome.REFUSED)) == refused, "one event each, none for an unknown caller"
    assert await admin.audit(AuditOutcome.REQUESTED, principal="viewer") == []

    store = "sqlite" if admin.client.store.supervisors is None else "postgres"
    expected = REFUSED | SUPERVISORS[store]
    fresh = [*admin.dead["acme"], *admin.dead["globex"]]  # one for each act that ends its review
    for operation in OPERATIONS:
        name = operation.endpoint.__name__
        if name.endswith("_dead_letter") and operation.action is not None:
            admin.dead["acme"][0] = fresh.pop()
        if name == "fail_job":
            admin.waiting["acme"] = admin.waiting["globex"]
        answers = [await ask(admin, operation, role.value) for role in Role if role.reaches(operation.role)]
        first, others = answers[0], {answer.status_code for answer in answers[1:]}
        if name not in expected:
            assert first.status_code in (200, 201, 202), (name, first.text)
            assert others <= {REFUSED_AGAIN.get(name, first.status_code)}, (name, others)
        else:
            assert {first.status_code, *others} == {expected[name]}, (name, first.text)


@pytest.mark.req("W67")
async def test_nothing_of_another_tenant_exists_for_a_tenants_manager(admin: AdminApi) -> None:
    before = await admin.facts()
    theirs = [public(one) for one in (*admin.dead["globex"], admin.done["globex"], admin.waiting["globex"])]
    for operation in OPERATIONS:
        name = operation.endpoint.__name__
        who = "acme admin" if operation.role is Role.ADMIN else "acme manager"
        answer = await ask(admin, operation, who, "globex")
        if operation.fleetwide:
            assert answer.status_code == 403, name
        elif "{" in operation.path or name == "follow_events":
            assert answer.status_code == 404, (name, answer.text)
            assert reported(answer) == reported(await ask(admin, operation, who, "unknown")), (
                "whether it exists stays hidden"
            )
        elif name not in ("list_audit", "start_bulk"):  # which show what acme itself did, and act on its own
            assert answer.status_code in (200, 201), (name, answer.text)
            assert "globex" not in answer.text and not any(one in answer.text for one in theirs), name
        if "tenant" in operation.query:
            beyond = await admin.get(f"{operation.path}?tenant=globex", who)
            assert beyond.status_code == 403, name
    after = await admin.facts()
    for made in ("runs", "jobs"):
        assert len(after.pop(made)) == len(before.pop(made)) + 1, "acme's own"
    assert after == before


def reported(answer: Any) -> str:
    """What it says, whichever id it is about."""
    return re.sub(r"\w{7}(-\w{7}){3}", "ID", answer.text)


@pytest.mark.req("W67")
async def test_the_audit_event_of_a_refusal_does_not_show_a_tenant_what_others_have(admin: AdminApi) -> None:
    for act in ("jobs/{}/cancel", "jobs/{}/retry", "dlq/{}/discard", "dlq/{}/reprocess", "dlq/bulk/{}/stop"):
        theirs = admin.runs["globex"] if "bulk" in act else admin.dead["globex"][0]
        for target in (theirs, uuid7()):
            assert (await admin.post(f"/admin/{act.format(public(target))}/", {}, "acme manager")).status_code == 404
    trail = (await admin.get("/admin/audit/?principal=acme%20manager", "acme manager")).json()["events"]
    seen = {(event["action"], event["outcome"], event["tenant"], str(event["before"])) for event in trail}
    assert (len(trail), len(seen)) == (10, 5), f"what exists reads like what does not: {sorted(seen)}"
    assert (await admin.get("/admin/audit/?principal=acme%20manager", "globex manager")).json()["events"] == []


@pytest.mark.req("W55")
@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_bad_input_changes_nothing_and_leaves_one_event(admin: AdminApi) -> None:
    before = await admin.facts()
    huge = b'{"notes": "' + b"x" * (1024 * 1024) + b'"}'
    for operation in ACTS:
        valid = BODIES.get(operation.endpoint.__name__, {})
        for content, media_type, expected in (
            (b'{"notes": ', "application/json", 400),
            (b"\xff\xfe", "application/json", 400),
            (b"[" * 100_000, "application/json", 400),
            (b'{"reason": NaN}', "application/json", 400),
            (b"notes=x", "application/x-www-form-urlencoded", 415),
            (b"{}", "text/plain", 415),
            (huge, "application/json", 413),
            (b"[]", "application/json", 422),
            (b"null", "application/json", 422),
            (json.dumps({**valid, "nots": "x"}).encode(), "application/json", 422),
            (json.dumps({**valid, "notes": 5, "reason": [], "name": {}}).encode(), "application/json", 422),
            (json.dumps({**valid, "notes": "\0", "reason": "\0"}).encode(), "application/json", 422),
        ):
            await _refused_once(admin, operation, expected, content=content, headers={"content-type": media_type})
    for operation in ACTS:
        if operation.target not in (None, "name", "tenant", "correlation_id"):  # those may be any text
            path = operation.template.format(**{operation.target: "01K-nonsense"})
            assert (await admin.ask("POST", path, "admin")).status_code == 422
    assert await admin.facts() == before


@pytest.mark.req("W55")
@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_an_act_that_cannot_be_begun_leaves_one_event_of_the_same_name_as_its_success(admin: AdminApi) -> None:
    first, second = (f"/admin/dlq/{public(one)}" for one in admin.dead["acme"])
    assert (await admin.post(f"{first}/discard/")).status_code == 200
    run, gone = public(admin.runs["acme"]), public(uuid7())

    def many(filter: Any) -> Any:
        return {"act": "discard", "filter": filter}

    assert (await admin.post(f"/admin/dlq/bulk/{run}/stop/")).status_code == 200
    for path, body, who, status_code, action in (
        (f"{first}/discard/", {}, "manager", 409, "dead_letter.discard"),
        (f"{first}/reprocess/", {}, "manager", 409, "dead_letter.reprocess"),
        (f"{second}/reprocess/", {"payload": {}}, "manager", 422, "dead_letter.reprocess"),
        (f"/admin/dlq/{gone}/resolve/", {}, "manager", 404, "dead_letter.resolve"),
        (f"/admin/jobs/{gone}/cancel/", {}, "manager", 404, "job.cancel"),
        (f"/admin/jobs/{gone}/fail/", {}, "manager", 404, "job.fail"),
        (f"/admin/jobs/{public(admin.dead['acme'][0])}/fail/", {"retry": True}, "manager", 409, "job.fail"),
        (f"/admin/jobs/{public(admin.dead['acme'][0])}/retry/", {}, "manager", 409, "job.retry"),
        (f"/admin/dlq/bulk/{run}/stop/", {}, "manager", 409, "dead_letter.bulk_stop"),
        ("/admin/dlq/bulk/", many({"status": ["discarded"]}), "manager", 422, "dead_letter.bulk"),
        ("/admin/dlq/bulk/", many({"tenant": "globex"}), "acme manager", 403, "dead_letter.bulk"),
        ("/admin/pauses/queue/mail/pause/", {}, "acme manager", 403, "queue.pause"),
        ("/admin/pauses/kind/%20x/pause/", {}, "manager", 422, "kind.pause"),
        ("/admin/tokens/", {"name": "x", "role": "viewer", "tenant": "*"}, "admin", 422, "token.create"),
        ("/admin/tokens/", {"name": "x", "role": "viewer", "expires_at": "2001-01-01T00:00:00Z"}, "admin", 422,
         "token.create"),
        (f"/admin/tokens/{gone}/revoke/", {}, "admin", 404, "token.revoke"),
        ("/admin/schedules/nothing/remove/", {}, "manager", 404, "schedule.remove"),
    ):  # fmt: skip
        known = {event.id for event in await admin.audit()}
        answer = await admin.post(path, body, who)
        assert answer.status_code == status_code, (path, answer.text)
        assert status_code != 422 or answer.json()["errors"], "a field is named"
        new = [event for event in await admin.audit() if event.id not in known]
        assert [(event.action, event.outcome) for event in new] == [(action, AuditOutcome.REFUSED)], path
        if gone in path:
            assert new[0].target == gone


async def _refused_once(admin: AdminApi, operation: Operation, expected: int, **more: Any) -> None:
    known = {event.id for event in await admin.audit()}
    answer = await ask(admin, operation, "admin", **more)
    name = operation.endpoint.__name__
    assert answer.status_code == expected, (name, more["content"][:60], answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == expected and answer.json()["detail"]
    new = [event for event in await admin.audit() if event.id not in known]
    assert [(event.outcome, event.action, event.principal) for event in new] == [
        (AuditOutcome.REFUSED, operation.action_on({"scope": "queue"}), "admin")
    ], name


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_invalid_requests_are_answered_with_what_is_wrong(admin: AdminApi) -> None:
    for operation in OPERATIONS:
        if operation.method == "GET":
            method, path = sample(admin, operation, "acme")
            answer = await admin.ask(method, f"{path.partition('?')[0]}?nonsense=1", "admin")
            assert answer.status_code == 422 and "nonsense" in answer.json()["detail"], path
    cursor = (await admin.get("/admin/dlq/?limit=1")).json()["next_cursor"]
    for query, field in (
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("tenant=acme&tenant=globex", "tenant"),
        ("cursor=AAAA", "cursor"),
        (f"cursor={cursor[:-2]}AA", "cursor"),
        (f"cursor={cursor}%3D", "cursor"),
        ("status=dead", "status.0"),
        ("since=yesterday", "since"),
        ("since=2030-01-01T00:00:00", "since"),
        ("since=0001-01-01T00:00:00Z", "since"),
        ("category=nothing", "category"),
        ("category=ingestion&job_type=greet", "job_type"),
        ("text=%00", "text"),
        ("tenant=", "tenant"),
    ):
        answer = await admin.get(f"/admin/dlq/?{query}")
        assert answer.status_code == 422, (query, answer.text)
        assert [one["field"] for one in answer.json()["errors"]] == [field], answer.text
    assert (await admin.get(f"/admin/audit/?cursor={cursor}")).status_code == 422, "it is of another list"
    for path, status_code in (("/admin/nothing/", 404), ("/nothing/at/all/", 404)):
        answer = await admin.get(path)
        assert (answer.status_code, answer.json()["status"]) == (status_code, status_code)
    for path, allow in (("/admin/dlq/", "GET"), ("/admin/tokens", "GET, POST")):
        answer = await admin.ask("DELETE", path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_problem_has_the_same_message_wherever_it_is_found(admin: AdminApi) -> None:
    for path, body, problem in (
        ("/admin/breakers/maps/open/", {"for": "1h"}, "for: there is no such field; there are: reason, open_for, new"),
        ("/admin/breakers/maps/open/", {"open_for": "soon"}, "open_for: 'soon' is not a length of time"),
        ("/admin/breakers/maps/open/", {"reason": "x" * 2_001}, "reason: it should have at most 2000 characters"),
        ("/admin/jobs/", {"payload": {}}, "kind: it is missing"),
        ("/admin/dlq/bulk/preview/", {"act": "discard", "filter": {"knd": "x"}}, "filter.knd: there is no such field;"),
    ):
        answer = await admin.post(path, body)
        assert answer.status_code == 422 and problem in answer.json()["detail"], answer.text
    for query, problem in (
        ("stuck/?older_than=abc", "older_than: 'abc' is not a length of time"),
        ("stuck/?old=1h", "there is no parameter 'old'; there are: kind, older_than"),
    ):
        answer = await admin.get(f"/admin/jobs/{query}")
        assert answer.status_code == 422 and problem in answer.json()["detail"], answer.text
        assert "timedelta" not in answer.text
