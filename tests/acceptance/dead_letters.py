"""A database with dead letters of two tenants, made and looked at between two commands."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import pytest
from command_line import Answer, Project

from dutiful.core.outcome import Failed
from dutiful.core.review.audit import AuditEvent
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.dead_letters import DeadLetter
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from suite.builders import finish_one

T = TypeVar("T")
BROKEN = {"type": "SMTPError", "message": "mailbox 7 is full", "class": "retryable", "fingerprint": "f1"}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The command line in a project, and the store beneath it."""

    project: Project
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def run(self, *args: str) -> Answer:
        return self.project.call(self.monkeypatch, self.capsys, *args)

    def ask(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async def session() -> T:
            url = self.project.url
            store = PostgresStore(url) if url.startswith("postgres") else SqliteStore(url.removeprefix("sqlite:///"))
            await store.open()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(session())

    def make_dead_letters(self, count: int = 1, **fields: Any) -> list[UUID]:
        async def work(store: Store) -> list[UUID]:
            error = fields.pop("error", BROKEN)
            at = datetime.now(UTC)
            return [await finish_one(store, Failed(error, final=True), now=at, **fields) for _ in range(count)]

        return self.ask(work)

    def letter(self, job_id: UUID) -> DeadLetter:
        found = self.ask(lambda store: store.dead_letters.find(job_id))
        assert found is not None
        return found

    def trail(self) -> list[AuditEvent]:
        """The oldest first."""
        return self.ask(lambda store: store.audit.search(AuditFilter(limit=1_000)))[::-1]
