"""Webhooks from a job's end to its receiver, with receivers that fail in every way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from receivers import SECRET, Call, Receiver, answer, hang, ok, receiving, until
from running_workers import clocked, eventually, final, working

from dutiful import Dutiful, Fail, JobRecord, State
from dutiful.client.client import Client
from dutiful.core.webhooks.message import new_secret
from dutiful.kind import Handle, Kind
from dutiful.maintenance import runner
from dutiful.maintenance.webhooks import sender
from dutiful.operator import Operator
from dutiful.store.webhooks import PostState, WebhookPost
from dutiful.testing import Clock
from servers import free_port

OLD, NEW = new_secret(b"o" * 32), new_secret(b"n" * 32)
HERE = "127.0.0.0/8"


@pytest.fixture
def app(app: Dutiful) -> Dutiful:
    app.configure(webhook_secrets=SECRET, webhook_networks=HERE)
    return app


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def greet(app: Dutiful) -> Kind[[str], str]:
    @app.job
    async def greet(name: str) -> str:
        return f"Hello {name}"

    return greet


async def posts(app: Dutiful, job: Handle[Any] | None = None) -> list[WebhookPost]:
    return await (await app.client()).store.webhooks.posts(job_id=None if job is None else job.id)


async def settled(app: Dutiful, job: Handle[Any], state: PostState = PostState.DELIVERED) -> WebhookPost:
    """The job's only message, once it is in that state and was tried."""

    async def ended() -> WebhookPost | None:
        for post in await posts(app, job):
            if post.state is state and (post.error or post.status):
                return post
        return None

    post: WebhookPost = await eventually(ended)
    return post


@pytest.mark.req("J62", "J63", "J64")
async def test_a_receiver_is_sent_a_job_that_is_stored_as_completed(app: Dutiful, greet: Kind[[str], str]) -> None:
    seen: list[tuple[JobRecord | None, WebhookPost]] = []

    async def find(call: Call, writer: asyncio.StreamWriter) -> None:
        data = call.verified()["data"]
        (post,) = await posts(app)
        seen.append((await app.find(data["job_id"]), post))
        await ok(call, writer)

    async with receiving(find) as receiver:
        app.webhook("all", receiver.url)
        async with working(app):
            job = await greet.options(tenant="acme", subject={"order": 7}).enqueue("Ada")
            post = await settled(app, job)
    ((record, before),) = seen
    assert record is not None and record.state is State.COMPLETED and before.state is PostState.PENDING
    assert (post.webhook, post.event, post.attempts, post.status) == ("all", "job.completed", 1, 204)
    (call,) = receiver.calls
    message = call.verified()
    assert (call.headers["webhook-id"], message["type"]) == (str(post.id), "job.completed")
    expected = {"id": job.public_id, "job_id": str(job.id), "kind": "greet", "result": "Hello Ada", "tenant": "acme",
                "state": "completed", "subject": {"order": 7}, "attempt": 1, "errors": []}  # fmt: skip
    assert message["data"] | expected == message["data"]


@pytest.mark.req("J16")
async def test_a_jobs_own_webhook_takes_the_place_of_all_others(
    app: Dutiful, greet: Kind[[str], str], receiver: Receiver
) -> None:
    async with receiving() as own:
        app.webhook("all", receiver.url)
        async with working(app):
            jobs = [await greet.options(webhook=own.url).enqueue("own"), await greet.enqueue("common")]
            await asyncio.gather(*[settled(app, job) for job in jobs])
            only_failures = {"url": own.url, "states": ["failed"]}
            unsent = await greet.options(webhook=only_failures).enqueue("unsent")
            await final(app, unsent)
            assert await posts(app, unsent) == []
    assert (own.received, receiver.received) == ([jobs[0].public_id], [jobs[1].public_id])


async def test_a_webhook_is_sent_the_kinds_and_states_that_it_asked_for(app: Dutiful, receiver: Receiver) -> None:
    @app.job
    async def fail() -> None:
        raise Fail("out of paper")

    @app.job
    async def other() -> None:
        raise Fail("not asked for")

    app.webhook("failures", receiver.url, kinds=[fail], states=["failed"])
    async with working(app):
        await final(app, await other.enqueue())
        job = await fail.enqueue()
        await settled(app, job)
    (call,) = receiver.calls
    message = call.verified()
    assert (message["type"], message["data"]["id"]) == ("job.failed", job.public_id)
    (error,) = message["data"]["errors"]
    assert error["message"] == "out of paper" and "traceback" not in error


async def test_a_message_goes_out_at_once_and_not_at_the_next_survey(
    app: Dutiful, greet: Kind[[str], str], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep, sleep = asyncio.Event(), runner.MaintenanceRunner._sleep

    async def note(self: runner.MaintenanceRunner, seconds: float) -> None:
        if self.leading:
            asleep.set()
            seconds = 3600.0
        await sleep(self, seconds)

    monkeypatch.setattr(runner.MaintenanceRunner, "_sleep", note)
    async with working(app):
        await asyncio.wait_for(asleep.wait(), 60)  # no other survey comes for an hour
        await settled(app, await greet.options(webhook=receiver.url).enqueue("now"))


async def test_a_message_is_posted_again_under_the_same_id_until_it_is_taken(
    app: Dutiful, greet: Kind[[str], str]
) -> None:
    clock = Clock()
    async with receiving(answer(500, b"database is down"), answer(429, retry_after="7200"), ok) as receiver:
        app.webhook("all", receiver.url)
        async with clocked(app, clock) as client, working(app, client):
            job = await greet.enqueue("Ada")
            post = await settled(app, job, PostState.PENDING)
            assert (post.status, post.error) == (500, "it answered 500 Internal Server Error: database is down")
            assert post.next_at is not None and timedelta(seconds=5) <= post.next_at - clock.now() <= timedelta(
                seconds=6
            )
            clock.advance("6s")
            await receiver.called(2)

            async def second() -> bool:
                return (await posts(app, job))[0].status == 429

            await eventually(second)
            (post,) = await posts(app, job)
            assert post.next_at is not None and post.next_at - clock.now() >= timedelta(hours=2)
            clock.advance("1h")
            other = await greet.enqueue("another")
            await settled(app, other)
            assert len(receiver.calls) == 3
            clock.advance("2h")
            post = await settled(app, job)
    assert post.attempts == 3 and post.error is None
    calls = [call for call in receiver.calls if call.headers["webhook-id"] == str(post.id)]
    assert len(calls) == 3 and len({call.body for call in calls}) == 1


async def test_a_receiver_that_is_gone_disables_its_webhook(app: Dutiful, greet: Kind[[str], str]) -> None:
    async with receiving(answer(410), ok) as receiver:
        app.webhook("all", receiver.url)
        async with working(app):
            store = (await app.client()).store
            post = await settled(app, await greet.enqueue("last"), PostState.FAILED)
            assert (post.attempts, post.status) == (1, 410)

            async def disabled() -> bool:
                (webhook,) = await store.webhooks.all()
                return not webhook.enabled and "410" in (webhook.reason or "")

            await eventually(disabled)
            unsent = await greet.enqueue("unsent")
            await final(app, unsent)
            assert await posts(app, unsent) == []
            assert await Operator(await app.client()).webhooks.enable("all", True, "it is back")
            await settled(app, await greet.enqueue("sent"))
    assert len(receiver.calls) == 2


async def test_a_jobs_own_receiver_that_is_gone_is_not_asked_again(app: Dutiful, greet: Kind[[str], str]) -> None:
    async with receiving(answer(410)) as receiver, working(app):
        post = await settled(app, await greet.options(webhook=receiver.url).enqueue("Ada"), PostState.FAILED)
    assert (post.attempts, post.webhook) == (1, None) and len(receiver.calls) == 1


async def test_a_receiver_that_is_down_is_sent_it_when_it_is_back(app: Dutiful, greet: Kind[[str], str]) -> None:
    clock, port = Clock(), free_port()
    async with clocked(app, clock) as client, working(app, client):
        job = await greet.options(webhook=f"http://127.0.0.1:{port}/hook").enqueue("Ada")
        assert "ConnectError" in ((await settled(app, job, PostState.PENDING)).error or "")
        async with receiving(port=port) as receiver:
            clock.advance("6s")
            assert (await settled(app, job)).attempts == 2
    assert receiver.received == [job.public_id]


async def test_a_redirect_to_another_place_is_not_followed(
    app: Dutiful, greet: Kind[[str], str], receiver: Receiver
) -> None:
    async with receiving(answer(301, location=receiver.url)) as moved, working(app):
        post = await settled(app, await greet.options(webhook=moved.url).enqueue("Ada"), PostState.PENDING)
    assert post.status == 301 and "redirects are not followed" in (post.error or "") and receiver.connections == 0


async def test_a_slow_receiver_delays_no_other(app: Dutiful, greet: Kind[[str], str], receiver: Receiver) -> None:
    gate = asyncio.Event()
    async with receiving(until(gate)) as slow:
        to_slow = greet.options(webhook=slow.url)
        async with working(app):
            jobs = [await to_slow.enqueue("slow") for _ in range(40)]
            await slow.called(4)
            await asyncio.gather(*[final(app, job) for job in jobs])
            for _ in range(3):
                await settled(app, await greet.options(webhook=receiver.url).enqueue("quick"))
            assert len(slow.calls) == 4  # at once; all others wait for these
            # And most of them in the outbox: no attempt is spent on what cannot be tried yet.
            taken = [post for job in jobs for post in await posts(app, job) if post.attempts]
            assert len(taken) <= sender.MAX_IN_FLIGHT
            gate.set()
            await asyncio.gather(*[settled(app, job) for job in jobs])
    assert sorted(slow.received) == sorted(job.public_id for job in jobs)


async def test_a_receiver_that_hangs_is_given_up_for_now(app: Dutiful, greet: Kind[[str], str]) -> None:
    app.configure(webhook_timeout="200ms")
    async with receiving(hang) as receiver, working(app):
        post = await settled(app, await greet.options(webhook=receiver.url).enqueue("Ada"), PostState.PENDING)
    assert post.error == "no answer within 0.2 s"


async def test_a_name_that_leads_inside_fails_for_good(
    app: Dutiful, greet: Kind[[str], str], receiver: Receiver
) -> None:
    job = await greet.options(webhook=receiver.url).enqueue("Ada")
    await app.close()
    app.configure(webhook_networks="10.99.0.0/16")  # what the worker allows is not what the producer did
    async with working(app):
        post = await settled(app, job, PostState.FAILED)
    assert post.attempts == 1 and "loopback" in (post.error or "") and receiver.connections == 0


@pytest.mark.req("J66", "J82")
async def test_shutdown_waits_for_messages_under_way_and_stores_what_came_of_them(
    app: Dutiful, greet: Kind[[str], str]
) -> None:
    gate = asyncio.Event()
    async with receiving(until(gate)) as receiver:
        async with working(app) as worker:
            job = await greet.options(webhook=receiver.url).enqueue("Ada")
            await receiver.called()
            worker.stop()

            async def closing() -> bool:  # a close that only waits has no effect to be seen
                maintenance: Any = worker._maintenance
                return bool(maintenance._webhooks._closing)

            await eventually(closing)
            gate.set()
        (post,) = await posts(app, job)
    assert post.state is PostState.DELIVERED and len(receiver.calls) == 1


@pytest.mark.req("J82")
async def test_what_ends_during_shutdown_is_still_posted(app: Dutiful, receiver: Receiver) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    @app.job
    async def last() -> None:
        started.set()
        await gate.wait()

    app.webhook("all", receiver.url)
    async with working(app) as worker:
        job = await last.enqueue()
        await asyncio.wait_for(started.wait(), 20)
        worker.stop()
        gate.set()
    (post,) = await posts(app, job)
    assert post.state is PostState.DELIVERED


@pytest.mark.req("J67")
async def test_a_delivery_is_recorded_though_retention_has_deleted_its_job(
    app: Dutiful, greet: Kind[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    async with receiving(until(gate)) as receiver, working(app):
        store = (await app.client()).store
        job = await greet.options(webhook=receiver.url).enqueue("Ada")
        await receiver.called()

        async def deleted() -> bool:
            await store.retention.delete(timedelta(0), 100, None)
            return await app.find(job.id) is None

        await eventually(deleted)
        gate.set()
        await settled(app, job)
    assert receiver.received == [job.public_id] and "dutiful.webhooks" not in {entry.name for entry in caplog.records}


async def test_secrets_can_be_changed_and_a_webhook_can_have_its_own(
    app: Dutiful, greet: Kind[[str], str], receiver: Receiver
) -> None:
    app.configure(webhook_secrets=[NEW, OLD])
    async with receiving() as private:
        app.webhook("common", receiver.url)
        app.webhook("private", private.url, secrets=SECRET)
        async with working(app):
            await greet.enqueue("Ada")
            ((common,), (own,)) = await asyncio.gather(receiver.called(), private.called())
    assert common.verified(NEW) == common.verified(OLD) and own.verified(SECRET)
    assert own.headers["webhook-signature"].count("v1,") == 1


async def test_an_operator_has_a_message_posted_again(
    app: Dutiful, greet: Kind[[str], str], receiver: Receiver
) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(working(app))
        job = await greet.options(webhook=receiver.url).enqueue("Ada")
        post = await settled(app, job)
        operator = Operator(await app.client())
        assert await operator.webhooks.redeliver(post.id, "they lost it")
        await receiver.called(2)
        again = await settled(app, job)
        assert not await operator.webhooks.redeliver(job.id)
    assert (again.id, again.attempts) == (post.id, 1)
    assert len({call.headers["webhook-id"] for call in receiver.calls}) == 1


async def test_a_webhook_that_this_app_does_not_declare_is_kept_until_it_is_removed(
    app: Dutiful, greet: Kind[[str], str], receiver: Receiver
) -> None:
    """Another version of the app may; a worker that starts without it must not silence it."""
    app.webhook("old", receiver.url)
    async with working(app):
        await settled(app, await greet.enqueue("first"))
    declared = dict(app.webhooks)
    app.webhooks.clear()
    async with working(app):
        await final(app, waiting := await greet.enqueue("second"))
    app.webhooks.update(declared)
    async with working(app):
        await settled(app, waiting)
        client: Client = await app.client()
        assert await client.store.webhooks.remove("old")
        job = await greet.enqueue("third")
        await final(app, job)
        assert await posts(app, job) == []
    assert len(receiver.calls) == 2
