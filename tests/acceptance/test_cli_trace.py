"""`trace`: all jobs of one correlation id as a tree, by the command line and over HTTP."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from api import admin_api
from command_line import Answer, Project
from uuid_utils.compat import uuid7

from dutiful import Dutiful
from dutiful.client.client import Client
from dutiful.core import ids
from dutiful.core.outcome import Failed
from dutiful.core.principal import Principal
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.operator import Operator
from dutiful.operator import trace as operator_trace
from dutiful.store import Store
from suite.builders import OOPS, claim_one, enqueue, enqueue_one, finish_one, new_job, settle

START = datetime.now(UTC) - timedelta(minutes=5)


def moment(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def order(store: Store, correlation_id: str = "order/7", **fields: Any) -> list[UUID]:
    """An order whose mail failed and was sent again, made one after the other, the root first."""
    mine = {"correlation_id": correlation_id, **fields}
    root = await finish_one(store, kind="order", now=moment(0), id=uuid7(), **mine)
    mail = await finish_one(
        store, Failed({**OOPS, "message": "mailbox\nfull"}, final=True),
        kind="mail", now=moment(1), id=uuid7(), parent_id=root, **mine,
    )  # fmt: skip
    bill = await enqueue_one(store, kind="bill", now=moment(2), id=uuid7(), parent_id=root, **mine)
    again = await finish_one(store, kind="mail", now=moment(3), id=uuid7(), parent_id=root, retry_of=mail, **mine)
    return [root, mail, bill, again]


Trace = Callable[..., Awaitable[Answer]]


@pytest.fixture
def trace(
    tmp_path: Path,
    backend: str,
    store: Store,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Trace:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    project = Project(tmp_path, url).write_jobs()

    async def trace(*args: str) -> Answer:
        # In a thread, because the command has an event loop of its own.
        return await asyncio.to_thread(project.call, monkeypatch, capsys, "trace", *args)

    return trace


@pytest.mark.req("L7", "L40", "L97", "L98")
async def test_a_correlation_id_is_traced_as_a_tree(trace: Trace, store: Store) -> None:
    root, mail, bill, again = [ids.public(one) for one in await order(store)]
    await enqueue_one(store, correlation_id="another", now=moment(0))

    printed = await trace("order/7")

    assert printed.code == 0, printed.err
    head, states, *lines = printed.out.splitlines()
    assert head == "order/7: 4 jobs"
    assert states == "75 % ended: 2 completed, 1 failed, 1 ready"
    assert [re.split(", made ....-..-.. ..:..:..", line)[0] for line in lines] == [
        f"{root}  order  completed  1/5",
        f"├─ {mail}  mail  failed  1/5",
        f"│  └─ retry {again}  mail  completed  1/5",
        f"└─ {bill}  bill  ready  0/5",
    ]
    assert lines[1].endswith("ValueError: mailbox full")
    reported = (await trace("order/7", "--json")).json
    assert [job["id"] for job in reported["jobs"]] == [root, mail, bill, again], "as they were made"
    assert [(job["under"], job["relation"], job["depth"]) for job in reported["jobs"]] == [
        (None, None, 0), (root, "child", 1), (root, "child", 1), (mail, "retry", 2),
    ]  # fmt: skip
    assert reported["correlation_id"] == "order/7" and reported["cut"] is False
    assert "payload" not in reported["jobs"][0]


@pytest.mark.req("L36", "L43")
async def test_any_job_of_it_leads_to_the_whole_and_a_job_without_one_is_its_own(trace: Trace, store: Store) -> None:
    family = await order(store)
    alone = await enqueue_one(store, now=moment(0), id=uuid7())
    child = await enqueue_one(store, now=moment(1), id=uuid7(), parent_id=alone, correlation_id=str(alone))

    async def traced(reference: str) -> tuple[str, list[str]]:
        reported = (await trace(reference, "--json")).json
        return reported["correlation_id"], [job["uuid"] for job in reported["jobs"]]

    whole = ("order/7", [str(one) for one in family])
    assert await traced(ids.public(family[3])) == whole
    assert await traced(str(family[1])) == whole
    both = (str(alone), [str(alone), str(child)])
    assert await traced(ids.public(alone)) == both
    assert await traced(str(alone)) == both


async def test_an_unknown_correlation_id_finds_no_jobs(trace: Trace) -> None:
    for strange in ("order-8", ids.public(uuid7()), "a\nb"):
        answer = await trace(strange)
        assert (answer.code, answer.out) == (1, "")
        assert answer.err.startswith("dutiful: no jobs: ")
        assert answer.err.count("\n") == 1


async def test_the_last_error_of_a_job_that_is_retried_is_shown(store: Store) -> None:
    await enqueue_one(store, correlation_id="c", now=moment(0), id=uuid7())
    for number in (1, 2):
        claimed = await claim_one(store, now=moment(100 * number))
        await settle(store, claimed, Failed({**OOPS, "message": f"no {number}"}), now=moment(100 * number))
        await store.promotion.promote(10, now=moment(100 * number + 50))

    (member,) = (await Operator(Client(store, InProcessDelivery())).trace.find("c")).members

    assert member.error == {"type": "ValueError", "message": "no 2", "class": None}


async def test_of_many_jobs_some_are_shown_but_as_one_tree(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_trace, "MOST", 7)
    monkeypatch.setattr(operator_trace, "OLDEST", 1)
    monkeypatch.setattr(operator_trace, "PAGE", 3)
    operator = Operator(Client(store, InProcessDelivery()))
    root, parent = new_job(correlation_id="c"), new_job(correlation_id="c")
    other = new_job()
    jobs = [new_job(correlation_id="c", parent_id=parent.id) for _ in range(9)]
    await enqueue(store, root, now=moment(0))
    await enqueue(store, new_job(correlation_id="c", id=parent.id, parent_id=root.id), now=moment(1))
    await enqueue(store, *jobs, now=moment(2))
    await enqueue(store, other, new_job(correlation_id="c", parent_id=other.id), now=moment(3))

    family = await operator.trace.find("c")

    assert family.cut
    newest = [one.id for one in jobs[-5:]]
    assert [one.id for one in family.members][:-1] == [root.id, parent.id, *newest]
    assert [one.depth for one in family.members] == [0, 1, 2, 2, 2, 2, 2, 0], "the child of another tree is a root"
    assert not (await operator.trace.find(str(other.id))).cut


async def test_jobs_that_come_from_each_other_are_all_here(trace: Trace, store: Store) -> None:
    one, other, alone = uuid7(), uuid7(), uuid7()
    for job_id, parent in ((one, other), (other, one), (alone, alone)):
        await enqueue_one(store, kind="mail", id=job_id, parent_id=parent, correlation_id="ring", now=moment(0))

    printed = await trace("ring")

    head, _, first, second, third = printed.out.splitlines()
    assert head == "ring: 3 jobs"
    assert f"a child of {ids.public(other)}, which is below this one" in first
    assert second.startswith(f"└─ {ids.public(other)}") and "a child of" not in second
    assert third.startswith(ids.public(alone)) and third.endswith("a child of itself")


async def test_that_there_are_more_is_printed_before_those_that_are_shown(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_trace, "MOST", 3)
    monkeypatch.setattr(operator_trace, "OLDEST", 1)
    root = await enqueue_one(store, correlation_id="c", id=uuid7(), now=moment(0))
    for number in range(4):
        await enqueue_one(store, correlation_id="c", id=uuid7(), parent_id=root, now=moment(1 + number))

    printed = await trace("c")

    head, states, *lines = printed.out.splitlines()
    assert states == "0 % ended: 5 ready"
    assert head == "c: 5 jobs, of which 3 are shown: what failed and is above it, the oldest, the newest"
    assert [line[:3] for line in lines] == ["01" + ids.public(root)[2], "├─ ", "└─ "]


async def test_a_job_that_depends_on_very_many_says_on_how_many(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_trace, "NEEDS", 3)
    needs = [new_job(id=uuid7(), correlation_id="c") for _ in range(6)]
    await enqueue(store, *needs, now=moment(0))
    last = new_job(id=uuid7(), correlation_id="c", depends_on=tuple(job.id for job in needs))
    await enqueue(store, last, now=moment(1))

    printed, reported = await trace("c"), (await trace("c", "--json")).json

    assert re.search(r"also after \S+ and 4 more", printed.out), printed.out
    assert [job["needs_total"] for job in reported["jobs"]] == [0] * 6 + [6]


@pytest.mark.req("L40")
async def test_a_tenant_traces_its_own_jobs_only(store: Store) -> None:
    await order(store, tenant="globex")
    own = await enqueue_one(store, correlation_id="order/7", tenant="acme", now=moment(9), id=uuid7())
    ann = Operator(Client(store, InProcessDelivery()), Principal(name="ann", tenant="acme"))

    assert [one.id for one in (await ann.trace.find("order/7")).members] == [own]


@pytest.mark.req("L40", "L98")
async def test_the_api_shows_the_same(app: Dutiful) -> None:
    async with admin_api(app) as admin:
        store = admin.client.store
        family = [ids.public(one) for one in await order(store)]

        for address in ("order%2F7", "order/7", family[2]):
            answer = await admin.get(f"/admin/trace/{address}/")
            assert answer.status_code == 200, answer.text
            reported = answer.json()
            assert reported["correlation_id"] == "order/7"
            assert [job["job_id"] for job in reported["jobs"]] == family
            assert [job["under"] for job in reported["jobs"]] == [None, family[0], family[0], family[1]]
        assert reported["jobs"][1]["error"] == {"type": "ValueError", "message": "mailbox\nfull", "error_class": None}
        missing = await admin.get("/admin/trace/unknown/")
        assert missing.status_code == 404
        assert (await admin.get("/admin/trace/order%2F7/", "acme manager")).status_code == 404
