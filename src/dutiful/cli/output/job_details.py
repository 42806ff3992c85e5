"""The details of one job: state, explanation, progress, attempts, errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dutiful.cli.commands.webhooks import post_json, print_posts
from dutiful.cli.output.printing import (
    STYLES,
    ago,
    both_ids,
    error_text,
    job_json,
    plain,
    print_facts,
    print_table,
    show,
    when,
)
from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.job import AttemptRecord, JobRecord, PhaseRecord, Progress
from dutiful.core.states import State
from dutiful.core.steps import StepRecord
from dutiful.operator import Operator
from dutiful.operator.explain import Explanation, Why
from dutiful.store.webhooks import WebhookPost

CUT = 2_000
BAR = 30
GROUPS = ("in_progress", "completed", "skipped", "failed")
SHOWN = 5  # failed items without --full


class Try(msgspec.Struct, frozen=True):
    """An attempt: a past one, the running one or the final one."""

    attempt: int
    outcome: str
    worker_id: UUID | None
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class JobDetails:
    job: JobRecord
    why: Explanation
    attempts: tuple[Try, ...]
    needs: tuple[JobRecord, ...]
    worker: str | None
    phases: tuple[PhaseRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    posts: tuple[WebhookPost, ...] = ()

    def print(self, *, full: bool) -> None:
        self._print_head()
        self._print_facts()
        print_value("Payload", self.job.payload, full)
        if self.job.result is not None:
            print_value("Result", self.job.result, full)
        if self.job.progress is not None:
            progress = self.job.progress
            show(f"\nProgress ({ago(progress.updated_at)})", *_lines(progress, full))
        print_phases(self.phases)
        print_steps(self.steps)
        self._print_attempts()
        if self.needs:
            rows = [(ids.public(n.id), n.kind, n.state.value) for n in self.needs]
            print_table(("id", "kind", "state"), rows, empty="", title="\nDepends on")
        if self.posts:
            print_posts(self.posts, title="\nWebhooks", whole=True)
        self._print_errors(full)

    def _print_head(self) -> None:
        from rich.text import Text

        state = self.job.state.value
        show(Text.assemble("Job ", (ids.public(self.job.id), "bold"), "  ", (state, STYLES[state])))
        if self.why.code is not Why.FINISHED:
            show(f"It {plain(self.why.sentence)}.")
        if self.why.remedy:
            show(f"→ {plain(self.why.remedy)}")
        show("")

    def _print_facts(self) -> None:
        job = self.job
        facts = {
            "uuid": str(job.id),
            "kind": job.kind,
            "queue": f"{job.queue}, priority {job.priority}",
            "attempts": f"{job.attempt} of {job.max_attempts}" + (f", and {job.crashes} lost" if job.crashes else ""),
            "tenant": job.tenant,
            "correlation id": job.correlation_id if job.correlation_id != str(job.id) else None,
            "parent": _public(job.parent_id),
            "retry of": _public(job.retry_of),
            "subject": None if job.subject is None else _json(job.subject),
            "payload": f"{len(_json(job.payload).encode()):,} bytes",
            "made": when(job.created_at),
            "made by": job.created_by,
            "due": when(job.run_at),
            "started": when(job.started_at),
            "lease ends": when(job.expires_at),
            "cancel asked": when(job.cancel_requested_at),
            "ended": when(job.finished_at),
            "worker": self.worker,
            "delivered as": job.backend_job_id,
        }
        print_facts(facts)

    def _print_attempts(self) -> None:
        if self.attempts:
            rows = [
                (t.attempt or None, t.outcome, t.worker, when(t.started_at), _took(t), error_text(t.error))
                for t in self.attempts
            ]
            names = ("attempt#", "outcome", "worker", "started", "took#", "error")
            print_table(names, rows, empty="", title="\nAttempts", whole=True)

    def _print_errors(self, full: bool) -> None:
        traces = [(a.attempt, a.error) for a in self.attempts if a.error and a.error.get("traceback")]
        if traces and not full:
            show("\nTracebacks: --full")
        for number, error in traces if full else []:
            show(f"\nTraceback of attempt {number}", plain(str(error["traceback"])).rstrip())
        if self.job.state is State.COMPLETED_WITH_ERRORS:
            for error in self.job.errors or []:
                show(f"\nError: {plain(error_text(error) or '')}")


async def job_details(
    operator: Operator, job_id: UUID, *, opened: bool = False, reason: str | None = None
) -> JobDetails:
    """Everything about a job; with `opened`, which is audited, sealed values in clear."""
    jobs = operator.jobs
    if opened:
        found = await operator.encryption.open(job_id, reason)
        job, past, phases, steps = found.job, found.attempts, found.phases, found.steps
    else:
        job, past = await jobs.get(job_id), await jobs.attempts(job_id)
        phases, steps = await jobs.phases(job_id), await jobs.steps(job_id)
    names = await worker_names(operator)
    attempts = [*past, *_last_attempt(job)]
    return JobDetails(
        job=job,
        why=await operator.jobs.explain(job_id),
        attempts=tuple(
            Try(a.attempt, a.outcome, a.worker_id, worker_name(a.worker_id, names), a.claimed_at, a.ended_at, a.error)
            for a in attempts
        ),
        needs=tuple(await operator.jobs.dependencies(job_id)),
        worker=worker_name(job.worker_id, names),
        phases=tuple(phases),
        steps=tuple(steps),
        posts=tuple(await operator.jobs.posts(job_id)),
    )


def details_json(details: JobDetails) -> dict[str, Any]:
    needs = [{**both_ids("id", need.id), "kind": need.kind, "state": need.state} for need in details.needs]
    posts = [post_json(post) for post in details.posts]
    return {
        **job_json(details.job),
        "why": details.why,
        "attempts": details.attempts,
        "phases": details.phases,
        "steps": details.steps,
        "depends_on": needs,
        "webhooks": posts,
    }


def _last_attempt(job: JobRecord) -> list[AttemptRecord]:
    """The running or final attempt, which is part of the job's own record; none if it never ran."""
    if job.started_at is None or not (job.state.final or job.state is State.RUNNING):
        return []
    error = job.errors[0] if job.errors else None
    ended: Any = job.finished_at  # none as long as it runs
    return [AttemptRecord(job.id, 0, job.attempt, job.state.value, job.worker_id, job.started_at, ended, error)]


def _public(job_id: UUID | None) -> str | None:
    return None if job_id is None else ids.public(job_id)


async def worker_names(operator: Operator) -> dict[UUID, str]:
    """Names of workers as `dutiful workers` shows them; none for a tenant."""
    return {} if operator.tenant is not None else {worker.id: worker.name for worker in await operator.fleet.workers()}


def worker_name(worker_id: UUID | None, names: dict[UUID, str]) -> str | None:
    return None if worker_id is None else names.get(worker_id, str(worker_id))


def _took(one: Try | PhaseRecord | StepRecord) -> str | None:
    return None if one.started_at is None or one.ended_at is None else brief(one.ended_at - one.started_at)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def print_value(title: str, value: Any, full: bool) -> None:
    text = plain(msgspec.json.format(_json(value), indent=2))
    if len(text) > CUT and not full:
        text = f"{text[:CUT]}\n… ({len(text):,} characters in all: --full)"
    show(f"\n{title}", text)


def print_phases(phases: Sequence[PhaseRecord]) -> None:
    if phases:
        rows = [(p.name, p.state.value, p.attempt, when(p.started_at), _took(p), error_text(p.error)) for p in phases]
        names = ("phase", "state", "tries#", "started", "took#", "error")
        print_table(names, rows, empty="", title="\nPhases", whole=True)


def print_steps(steps: Sequence[StepRecord]) -> None:
    if steps:
        rows = [
            (s.name, s.state.value.replace("_", " "), s.code, when(s.started_at), _took(s), when(s.due_at))
            for s in steps
        ]
        print_table(("step", "state", "code", "started", "took#", "until"), rows, empty="", title="\nSteps", whole=True)


def _lines(progress: Progress, full: bool) -> list[str]:
    lines: list[str] = []
    if progress.overall is not None:
        done = round(BAR * progress.overall / 100)
        lines.append(f"[{'#' * done}{'.' * (BAR - done)}] {progress.overall} %")
    if progress.phase is not None:
        percent = "" if progress.percent is None else f": {progress.percent:.0f} %"
        lines.append(f"phase {plain(progress.phase)}{percent}")
    if progress.message:
        lines.append(plain(progress.message))
    if progress.items is not None:
        lines += _items(progress.items, full)
    return lines


def _items(items: dict[str, Any], full: bool) -> list[str]:
    counts = ", ".join(f"{len(items.get(name, ())):,} {name.replace('_', ' ')}" for name in GROUPS)
    failed = items.get("failed", [])
    lines = [f"{items.get('total', 0):,} items: {counts}"]
    lines += [f"  failed: {plain(str(f['item']))}: {plain(f['error'])}" for f in (failed if full else failed[:SHOWN])]
    if len(failed) > SHOWN and not full:
        lines.append(f"  and {len(failed) - SHOWN:,} more: --full")
    return lines
