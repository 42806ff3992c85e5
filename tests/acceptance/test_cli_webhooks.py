"""`dutiful webhooks`, on both stores."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from command_line import Answer, Project
from standardwebhooks import Webhook

from dutiful.core.outcome import Done
from dutiful.store import Store
from dutiful.store.webhooks import PostResult, PostState, WebhookPost, WebhookRecord
from suite.builders import finish_one

SHOP = WebhookRecord(name="shop", url="https://shop.example.com/hook", states=["completed"])


Run = Callable[..., Awaitable[Answer]]


@pytest.fixture
def run(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in a thread, because it has an event loop of its own."""
    return lambda *args: asyncio.to_thread(project.call, monkeypatch, capsys, *args)


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


async def failed_post(store: Store) -> WebhookPost:
    await store.webhooks.put([SHOP])
    await finish_one(store, Done("1"))
    (post,) = await store.webhooks.take(1, timedelta(minutes=1))
    await store.webhooks.settle(PostResult(post.id, post.attempts, PostState.FAILED, None, 404, "it answered 404"))
    return post


async def test_a_failed_message_is_found_and_posted_again(run: Run, store: Store) -> None:
    post = await failed_post(store)

    (found,) = (await run("webhooks", "posts", "--state", "failed", "--json")).json["posts"]
    shown = await run("jobs", "show", found["job_id"])
    again = await run("webhooks", "redeliver", found["id"], "--reason", "they lost it")
    (pending,) = (await run("webhooks", "posts", "--job", found["job_id"], "--json")).json["posts"]

    assert (found["id"], found["status"], found["webhook"]) == (str(post.id), 404, "shop")
    assert "it answered 404" in shown.out and "shop" in shown.out
    assert (again.code, pending["state"], pending["attempts"]) == (0, "pending", 0)
    twice = await run("webhooks", "redeliver", found["id"])
    assert twice.code == 1 and "no message" in twice.err
    assert (await run("webhooks", "redeliver", "7")).code == 2


async def test_a_webhook_that_no_code_declares_is_removed(run: Run, store: Store) -> None:
    await store.webhooks.put([SHOP])

    assert (await run("webhooks", "remove", "shop")).out == "webhook shop is removed\n"
    assert await store.webhooks.all() == []
    assert (await run("webhooks", "remove", "shop")).code == 1


async def test_a_webhook_is_disabled_and_enabled(run: Run, store: Store) -> None:
    await store.webhooks.put([SHOP])

    assert (await run("webhooks", "disable", "shop", "--reason", "moving")).out == "webhook shop is disabled\n"
    (off,) = (await run("webhooks", "list", "--json")).json["webhooks"]
    assert (off["name"], off["enabled"], off["reason"]) == ("shop", False, "moving")
    assert "moving" in (await run("webhooks", "list")).out
    assert (await run("webhooks", "disable", "shop")).out == "webhook shop was disabled\n"
    assert (await run("webhooks", "enable", "shop")).out == "webhook shop is enabled\n"
    missing = await run("webhooks", "enable", "shops")
    assert missing.code == 1 and "there are: shop" in missing.err


def test_a_new_secret_can_be_used_at_once(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///none.db")
    secrets = {project.run("webhooks", "secret", DUTIFUL_APP="").out.strip() for _ in range(2)}

    assert len(secrets) == 2 and all(Webhook(secret) for secret in secrets)
