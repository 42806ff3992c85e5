"""What tests of the documentation host's upkeep share: repositories, periodic jobs, services that fail or wait."""

import asyncio
import hashlib
import hmac
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from uuid import UUID, uuid4

import psycopg
from docverse import Host, Json

from examples.docverse.config import Config
from examples.docverse.factory import Docverse, open_docverse
from examples.docverse.services.hosting import QueueIn
from examples.docverse.storage.object_store import DirectoryObjectStore

SECRET = "a secret of sixteen or more"  # that signs webhooks


class Repository:
    """A real git repository in the host's folder."""

    def __init__(self, host: Host, name: str) -> None:
        self._path = host.config.repositories / name
        self._path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *command: str) -> None:
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        subprocess.run(["git", *who, *command], cwd=self._path, check=True, capture_output=True)

    def commit(self, **files: str) -> None:
        for name, text in files.items():
            (self._path / f"{name.replace('_', '.').strip('.')}").write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")


class GitHub:
    """Sends webhooks as GitHub does."""

    def __init__(self, host: Host, secret: str = SECRET) -> None:
        self._host, self._secret = host, secret

    @staticmethod
    async def enroll(host: Host) -> None:
        """Gives the organization its secret."""
        headers = {"authorization": f"Bearer {host.config.superuser_token}"}
        await host.http.put("/orgs/rubin/credentials/github", json={"secret": SECRET}, headers=headers)

    async def push(
        self, repository: str, ref: str = "refs/heads/main", *, org: str = "rubin", expected: int = 202, **more: Any
    ) -> str:
        """The id of the job that it makes; empty if it makes none."""
        body = json.dumps({"ref": ref, "repository": {"full_name": repository}, **more.pop("body", {})}).encode()
        answer = await self.send(org, body, **more)
        assert answer.status_code == expected, answer.text
        return answer.json()["queue_job"] or ""

    async def send(self, org: str, body: bytes, *, event: str = "push", delivery: str = "", **headers: str) -> Any:
        signature = "sha256=" + hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
        given = {
            "x-github-event": event,
            "x-github-delivery": delivery or str(uuid4()),
            "x-hub-signature-256": signature,
        } | headers
        return await self._host.http.post(f"/orgs/{org}/webhooks/github", content=body, headers=given)


def sql(host: Host, statement: str, *args: Any) -> list[Any]:
    with psycopg.connect(host.config.database_url, autocommit=True) as connection:
        cursor = connection.execute(statement, args)
        return cursor.fetchall() if cursor.description else []


async def run(host: Host, kind: str) -> Json:
    """A periodic job, enqueued as the cron does it, when it has ended."""
    return await host.ended(str((await host.jobs.enqueue(kind)).public_id))


async def result_of(host: Host, job: Json) -> Any:
    record = await host.jobs.find(job["public_id"])
    assert record is not None
    return record.result


async def attempts(host: Host, job: Json) -> int:
    record = await host.jobs.find(job["public_id"])
    assert record is not None
    return record.attempt


def replaced(**parts: Callable[[Docverse], Any]) -> Callable[[Config, QueueIn], AbstractAsyncContextManager[Docverse]]:
    """Services of which some are others."""

    @asynccontextmanager
    async def opened(config: Config, queue_in: QueueIn) -> AsyncIterator[Docverse]:
        async with open_docverse(config, queue_in) as services:
            yield replace(services, **{name: make(services) for name, make in parts.items()})

    return opened


class Together:
    """Lets calls pass only when as many are under way at the same time."""

    def __init__(self, inner: Any, method: str, number: int) -> None:
        self._inner, self._method, self._barrier = inner, method, asyncio.Barrier(number)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        async def wait(*args: Any) -> Any:
            async with asyncio.timeout(30):
                await self._barrier.wait()
            return await found(*args)

        return wait


async def rule(host: Host, name: str, where: str = "/orgs/rubin", **given: Any) -> None:
    await host.call("PUT", f"{where}/rules/{name}", json=given)


class FailingStore(DirectoryObjectStore):
    """Fails a number of times when something is put below a name."""

    def __init__(self, root: Path, part: str, times: int) -> None:
        super().__init__(root)
        self.part, self.times = part, times

    async def put(self, key: str, data: bytes | IO[bytes]) -> None:
        self._maybe_fail(key)
        await super().put(key, data)

    async def move(self, prefix: str, target: str) -> bool:
        self._maybe_fail(prefix)
        return await super().move(prefix, target)

    def _maybe_fail(self, key: str) -> None:
        if self.part in key and self.times:
            self.times -= 1
            raise OSError("the object store is away")


def on_store(store: FailingStore) -> Callable[[Config, QueueIn], AbstractAsyncContextManager[Docverse]]:
    return lambda config, queue_in: open_docverse(config, queue_in, objects=store)


class Waiting:
    """A job whose locks let something happen before they are held."""

    def __init__(self, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self.id: UUID = uuid4()
        self._meanwhile = meanwhile

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[None]:
        await self._meanwhile()
        yield

    def lock(self, namespace: str, key: int) -> AbstractAsyncContextManager[object]:
        return self._lock()

    def message(self, text: str) -> None: ...
    def ends_by(self, error: Exception) -> bool:
        return False

    def start_editions_phase(self, slugs: Any) -> None: ...
    def mark_edition_completed(self, slug: str) -> None: ...
    def mark_edition_skipped(self, slug: str, reason: str) -> None: ...
    def mark_edition_failed(self, slug: str, error: Exception) -> str | None:
        return str(error)
