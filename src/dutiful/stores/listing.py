"""Finds a page of jobs, the same way for every store and without I/O: a generator yields requests to the store.

Jobs are listed newest first, which is the order of their ids. A branch is a range of an index with its ids in that
order; a source is a set of branches that contains all wanted jobs. A stretch is the newest ids of a source's branches,
merged; ids below its edge may be incomplete, so they are not used. Conditions that a source does not fulfil are checked
for each id of the stretch. Of several sources, the most selective one is walked: its first stretch goes back furthest.

The cursor is an id, and a page covers every id down to it: no job is left out or listed twice, whatever is enqueued or
deleted meanwhile. A job that changes its state between pages may be listed on either, or not at all.
"""

from collections.abc import Generator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import MalformedId, UsageError
from dutiful.core.job import JobRecord
from dutiful.core.states import State
from dutiful.store.queries import JobFilter, JobPage

SEARCHED = 5_000  # candidates that one page reads, unless more than half as many jobs are requested
FIRST = 250  # candidates in the first stretch, over all branches
_FEWEST = 8  # candidates of one branch in the first stretch
_GROWTH = 4
_LOWEST, _HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
_NOT_COMPLETED = (State.CANCELLED, State.COMPLETED_WITH_ERRORS, State.FAILED)


class Index(StrEnum):
    """The index of a branch."""

    JOB = "job"  # all jobs
    KIND_QUEUE = "kind_queue"  # jobs of one kind and queue
    TENANT = "tenant"
    CORRELATION = "correlation"
    CORRELATION_ROOT = "correlation_root"  # the job that is its own correlation
    SCHEDULED = "scheduled"
    READY = "ready"
    BLOCKED = "blocked"
    RUNNING = "running"
    NOT_COMPLETED = "not_completed"  # finished in one state other than completed
    FINISHED = "finished"  # in any state
    TRIED = "tried"  # had an attempt before the running or the final one


class Branch(msgspec.Struct, frozen=True):
    index: Index
    name: str = ""
    queue: str = ""


class KindQueues(msgspec.Struct, frozen=True):
    """Asks for the (kind, queue) pairs that have jobs, limited to these kinds or this queue if given."""

    kinds: Sequence[str] | None
    queue: str | None


class Walk(msgspec.Struct, frozen=True):
    """Asks for a list of ids for each branch: its `each` newest from `low` to just below `high`, newest first."""

    branches: Sequence[Branch]
    low: UUID
    high: UUID
    each: int


class FilterIds(msgspec.Struct, frozen=True):
    """Asks which of `ids` match those of the state, kinds, queue, tenant, subject, error_class, phase and text that are
    not None.

    The order of ids is kept.
    """

    ids: Sequence[UUID]
    wanted: JobFilter


class Fetch(msgspec.Struct, frozen=True):
    """Asks for the jobs with these ids, newest first, with or without details; deleted ones are left out."""

    ids: Sequence[UUID]
    details: bool


Lookup: TypeAlias = KindQueues | Walk | FilterIds | Fetch
Listing: TypeAlias = Generator[Lookup, Any, JobPage]


class _Source(msgspec.Struct, frozen=True):
    """Branches that together contain all wanted jobs, and the conditions left to check (None: none)."""

    branches: Sequence[Branch]
    rest: JobFilter | None


class _Stretch(msgspec.Struct, frozen=True):
    ids: list[UUID]
    edge: UUID | None  # the last id that was read; None: there are no more
    walked: int = 0  # how many ids were read


def listing(wanted: JobFilter) -> Listing:
    """Finds the page that `wanted` describes; the caller sends the answer to each yielded lookup."""
    if wanted.limit < 1:
        raise UsageError(f"limit {wanted.limit} is not a number of jobs: ask for 1 or more")
    if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
        raise UsageError("since is later than until, so there can be no such jobs: give them the other way round")
    low, high = _range(wanted)
    sources = yield from _sources(wanted)
    found: list[UUID] = []
    stretch = _Stretch([], None)
    if sources and low < high:
        source, each, stretch = yield from _narrowest(sources, low, high, wanted.limit)
        left = max(SEARCHED, 2 * wanted.limit)
        while True:
            left -= stretch.walked
            found += stretch.ids if source.rest is None else (yield FilterIds(stretch.ids, source.rest))
            if len(found) >= wanted.limit or stretch.edge is None or (left <= 0 and source.rest is not None):
                break
            each = max(each, min(each * _GROWTH, left // len(source.branches)))
            stretch = yield from _walk(source, low, stretch.edge, each)
    jobs: list[JobRecord] = (yield Fetch(found[: wanted.limit], wanted.details)) if found else []
    following = found[wanted.limit - 1] if len(found) > wanted.limit else stretch.edge
    return JobPage(
        # A job that has changed its state since it was found is left out.
        [job for job in jobs if wanted.state is None or job.state is wanted.state],
        following,
        wanted.since if following is None else _time(following),
    )


def needle(text: str) -> str:
    """`text` as it appears within JSON."""
    return msgspec.json.encode(text).decode()[1:-1]


def _range(wanted: JobFilter) -> tuple[UUID, UUID]:
    """The range of ids to list: its first, and the one after its last."""
    low = _LOWEST if wanted.since is None else ids.first_from(wanted.since)
    bounds = [_HIGHEST]
    if wanted.before is not None:
        bounds.append(wanted.before)
    if wanted.until is not None:
        bounds.append(ids.first_from(wanted.until))
    return low, min(bounds)


def _sources(wanted: JobFilter) -> Generator[Lookup, Any, list[_Source]]:
    """All sources of the wanted jobs; none if there can be no such jobs."""
    kinds = _kinds(wanted)
    if kinds == []:
        return []
    asked = msgspec.structs.replace(wanted, kind=None, kinds=kinds, correlation_id=None, subject=wanted.subject or None)
    if wanted.correlation_id is not None:
        branches = [Branch(Index.CORRELATION, wanted.correlation_id)]
        if _is_id(wanted.correlation_id):
            branches.append(Branch(Index.CORRELATION_ROOT, wanted.correlation_id))
        return [_source(branches, asked)]
    found: list[_Source] = []
    if kinds is not None or wanted.queue is not None:
        pairs = [Branch(Index.KIND_QUEUE, kind, queue) for kind, queue in (yield KindQueues(kinds, wanted.queue))]
        if not pairs:
            return []
        if len(pairs) * _FEWEST <= SEARCHED:  # else it is faster to read the jobs of all kinds
            found.append(_source(pairs, asked, kinds=None, queue=None))
    if wanted.tenant is not None:
        found.append(_source([Branch(Index.TENANT, wanted.tenant)], asked, tenant=None))
    if wanted.state is State.COMPLETED:
        found.append(_source([Branch(Index.FINISHED)], asked))
    elif wanted.state is not None and wanted.state.final:
        found.append(_source([Branch(Index.NOT_COMPLETED, wanted.state.value)], asked, state=None))
    elif wanted.state is not None:
        found.append(_source([Branch(Index(wanted.state.value))], asked, state=None))
    if wanted.error_class is not None and (wanted.state is None or not wanted.state.final):
        # Few waiting jobs have an error, and only after an attempt.
        ended = [Branch(Index.NOT_COMPLETED, state.value) for state in _NOT_COMPLETED if wanted.state is None]
        found.append(_source([Branch(Index.TRIED), *ended], asked))
    return found or [_source([Branch(Index.JOB)], asked)]


def _source(branches: Sequence[Branch], asked: JobFilter, **answered: None) -> _Source:
    rest = msgspec.structs.replace(asked, **answered)
    by_row = (rest.state, rest.kinds, rest.queue, rest.tenant)
    open_questions = (*by_row, rest.subject, rest.error_class, rest.phase, rest.text)
    return _Source(branches, rest if any(question is not None for question in open_questions) else None)


def _narrowest(
    sources: Sequence[_Source], low: UUID, high: UUID, limit: int
) -> Generator[Lookup, Any, tuple[_Source, int, _Stretch]]:
    """The source whose stretch of the same length goes back furthest, and that stretch."""
    walked: list[tuple[_Source, int, _Stretch]] = []
    for source in sources:
        # One more than requested shows whether there is a next page.
        count = limit + 1 if source.rest is None else max(limit + 1, FIRST)
        each = max(-(-count // len(source.branches)), min(_FEWEST, count))
        walked.append((source, each, (yield from _walk(source, low, high, each))))
        if walked[-1][2].edge is None:
            break
    return min(walked, key=lambda one: one[2].edge or _LOWEST)


def _walk(source: _Source, low: UUID, high: UUID, each: int) -> Generator[Lookup, Any, _Stretch]:
    parts: list[list[UUID]] = yield Walk(source.branches, low, high, each)
    edge = max((part[-1] for part in parts if len(part) == each), default=None)
    # A failed or cancelled job with earlier attempts is in two branches.
    merged = sorted({one for part in parts for one in part if edge is None or one >= edge}, reverse=True)
    return _Stretch(merged, edge, sum(map(len, parts)))


def _kinds(wanted: JobFilter) -> list[str] | None:
    if wanted.kinds is None:
        return None if wanted.kind is None else [wanted.kind]
    return sorted({kind for kind in wanted.kinds if wanted.kind in (None, kind)})


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _time(job_id: UUID) -> datetime | None:
    try:
        return ids.time_of(job_id)
    except MalformedId:  # not one of our cursors
        return None
