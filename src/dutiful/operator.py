"""What people do to jobs: every act has a principal and a reason, and goes through one door."""

import getpass
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar, assert_never
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.client import REASON_LIMIT, Client
from dutiful.core import ids
from dutiful.core.errors import IllegalTransition, JobNotFound
from dutiful.core.job import Insertion, JobRecord, NewJob, Unique
from dutiful.core.payload import check_name, clean
from dutiful.core.transitions import State
from dutiful.explanation import Explanation, Fleet, finished, gate, in_line, later, running, unserved
from dutiful.store import CancelResult, JobFilter, Pause, PauseScope

T = TypeVar("T")
COUNTED = 200  # ready jobs of a queue up to which those ahead are counted one by one
log = logging.getLogger("dutiful.operator")


class Retried(msgspec.Struct, frozen=True):
    """The job that will run now: a new one (`made`), or one that waited and is due now."""

    job_id: UUID
    state: State
    made: bool


class Operator:
    """The acts of one person, the `principal`; by default the user of this process."""

    def __init__(self, client: Client, principal: str | None = None) -> None:
        self._client = client
        self._store = client.store
        self.principal = principal or os_user()

    async def retry(self, job_id: UUID, reason: str | None = None) -> Retried:
        """Run a finished job again as a new one, or make a scheduled one due now; any other is left alone."""
        record = await self._client.get(job_id)
        match record.state:
            case State.SCHEDULED:
                return await self._act("expedite", ids.public(job_id), reason, lambda: self._expedite(record))
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.FAILED | State.CANCELLED:
                return await self._act("retry", ids.public(job_id), reason, lambda: self._again(record))
            case State.READY | State.BLOCKED | State.RUNNING:
                why = await self.explain(job_id)
                raise IllegalTransition(f"job {ids.public(job_id)} is {record.state} already: it {why.sentence}")
            case _:
                assert_never(record.state)

    async def cancel(self, job_id: UUID, reason: str | None = None) -> CancelResult:
        told = reason or f"cancelled by {self.principal}"
        return await self._act("cancel", ids.public(job_id), reason, lambda: self._client.cancel(job_id, told))

    async def pause(self, scope: PauseScope, name: str, reason: str | None = None) -> bool:
        """Let nothing of it start any more; False if it was paused already."""
        pause = Pause(scope, check_name(name, scope.value), datetime.now(UTC), self.principal, reason)
        return await self._act("pause", f"{scope} {name}", reason, lambda: self._store.pause(pause))

    async def resume(self, scope: PauseScope, name: str, reason: str | None = None) -> bool:
        """Undo a pause; False if there was none."""
        return await self._act("resume", f"{scope} {name}", reason, lambda: self._store.resume(scope, name))

    async def enable_schedule(self, name: str, enabled: bool, reason: str | None = None) -> bool:
        """Let a schedule fire or not; False if there is none of that name."""
        verb = "enable schedule" if enabled else "disable schedule"
        return await self._act(verb, name, reason, lambda: self._store.enable_schedule(name, enabled))

    async def redeliver(self, post_id: UUID, reason: str | None = None) -> bool:
        """Post a webhook that has ended again, with all its attempts; False if there is none, or it still waits."""
        return await self._act("redeliver webhook", str(post_id), reason, lambda: self._store.post_again(post_id))

    async def remove_schedule(self, name: str, reason: str | None = None) -> bool:
        """Forget a schedule that the code no longer declares; False if there is none of that name."""
        return await self._act("remove schedule", name, reason, lambda: self._store.remove_schedule(name))

    async def remove_webhook(self, name: str, reason: str | None = None) -> bool:
        """Forget a webhook that the code no longer declares; False if there is none of that name."""
        return await self._act("remove webhook", name, reason, lambda: self._store.remove_webhook(name))

    async def enable_webhook(self, name: str, enabled: bool, reason: str | None = None) -> bool:
        """Let an endpoint hear of jobs or not; False if that changes nothing."""
        if enabled:
            return await self._act("enable webhook", name, reason, lambda: self._store.enable_webhook(name))
        told = clean(reason or f"disabled by {self.principal}", REASON_LIMIT)
        return await self._act("disable webhook", name, reason, lambda: self._store.disable_webhook(name, told))

    async def explain(self, job_id: UUID) -> Explanation:
        """Why it is not running, or what it is doing."""
        record, now = await self._client.get(job_id), datetime.now(UTC)
        match record.state:
            case State.RUNNING:
                return running(record, now)
            case State.SCHEDULED if record.run_at is not None and record.run_at > now:
                return later(record, record.run_at, await self._store.attempts(job_id), now)
            case State.SCHEDULED | State.READY | State.BLOCKED:
                fleet = Fleet.of(await self._store.workers(), await self._store.pauses())
                if record.state is State.BLOCKED and (held := gate(record, await self._needs(record), fleet, now)):
                    return held
                if found := unserved(record, fleet, now):
                    return found
                ahead, exact = await self._ahead(record)
                return in_line(record, fleet, ahead, exact=exact)
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.FAILED | State.CANCELLED:
                return finished(record, now)
            case _:
                assert_never(record.state)

    async def _act(self, verb: str, target: str, reason: str | None, work: Callable[[], Awaitable[T]]) -> T:
        """The one door that every act of a person goes through: who, what and why are known here."""
        result = await work()
        log.info("%s: %s %s (%s)", self.principal, verb, target, reason or "no reason given")
        return result

    async def _expedite(self, record: JobRecord) -> Retried:
        state = await self._store.expedite(record.id)
        if state is None:
            raise JobNotFound(f"there is no job {ids.public(record.id)} any more")
        self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return Retried(record.id, state, made=False)

    async def _again(self, record: JobRecord) -> Retried:
        job = NewJob(
            id=uuid_utils.compat.uuid7(),
            kind=record.kind,
            queue=record.queue,
            payload=_text(record.payload) or "{}",
            priority=record.priority,
            max_attempts=record.max_attempts,
            tenant=record.tenant,
            correlation_id=record.correlation_id,
            parent_id=record.parent_id,
            retry_of=record.id,
            subject=_text(record.subject),
            created_by=self.principal,
            options=_text(record.options),
            # Two people, or one double click, must not run it twice at the same time.
            unique=Unique(f"retry of {record.id}"),
        )
        inserted = await self._client.submit(job)
        made = inserted.insertion is Insertion.MADE
        return Retried(inserted.job_id, (await self._client.get(inserted.job_id)).state, made)

    async def _needs(self, record: JobRecord) -> list[JobRecord]:
        return await self._store.dependencies(record.id) if record.gate == "dependency" else []

    async def _ahead(self, record: JobRecord) -> tuple[int, bool]:
        """How many start before it, by priority and age; with False, only how many more its queue has."""
        ready = next((q.ready for q in await self._store.queues() if q.queue == record.queue), 0)
        if ready > COUNTED:
            return ready - 1, False
        waiting = await self._store.jobs(JobFilter(state=State.READY, queue=record.queue, limit=COUNTED))
        return sum((job.priority, job.id) < (record.priority, record.id) for job in waiting), True


def os_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
