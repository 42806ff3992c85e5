"""How a page of jobs is found; the same for every store, and without I/O: it yields what to look up next.

Jobs are listed newest first, which is the order of their ids, and every index that serves a list has the ids of each of
its branches in that order. A stretch is the newest ids of a source's branches, merged; beyond its edge something may be
missing, so nothing beyond it is used. What the source does not answer for is asked of each id of the stretch. Where
there are several sources the narrowest is walked: the one whose first stretch goes back furthest.

The cursor is an id, and a page looks at every id down to its next one: nothing is left out or listed twice, whatever is
enqueued or retained meanwhile. A job that changes its state between pages may be listed with either, or not at all.
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

SEARCHED = 5_000  # candidates that one page looks at, unless it was asked for more jobs than half of that
FIRST = 250  # of them in the first stretch, of all branches together
_FEWEST = 8  # of a branch in the first stretch
_GROWTH = 4
_LOWEST, _HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
_UNHAPPY = (State.CANCELLED, State.COMPLETED_WITH_ERRORS, State.FAILED)


class Index(StrEnum):
    """What a branch is of."""

    JOB = "job"  # all jobs
    KIND_QUEUE = "kind_queue"  # jobs of one kind and queue
    TENANT = "tenant"
    CORRELATION = "correlation"
    OWN = "own"  # the job that is its own correlation
    SCHEDULED = "scheduled"
    READY = "ready"
    BLOCKED = "blocked"
    RUNNING = "running"
    UNHAPPY = "unhappy"  # finished in one state other than completed
    FINISHED = "finished"  # in any state
    TRIED = "tried"  # had an attempt before the running or the final one


class Branch(msgspec.Struct, frozen=True):
    index: Index
    name: str = ""
    queue: str = ""


class KindQueues(msgspec.Struct, frozen=True):
    """Asks for each (kind, queue) that has jobs; with a queue, for its pair with any kind there is, or is given."""

    kinds: Sequence[str] | None
    queue: str | None


class Walk(msgspec.Struct, frozen=True):
    """Asks for a list of ids for each branch: its `each` newest from `low` to just below `high`, newest first."""

    branches: Sequence[Branch]
    low: UUID
    high: UUID
    each: int


class Sift(msgspec.Struct, frozen=True):
    """Asks which of `ids` are of the state, kinds, queue, tenant, subject, error_class and text that are not None.

    They stay in their order.
    """

    ids: Sequence[UUID]
    wanted: JobFilter


class Fetch(msgspec.Struct, frozen=True):
    """Asks for the jobs with these ids, newest first; those that are gone are left out."""

    ids: Sequence[UUID]


Request: TypeAlias = KindQueues | Walk | Sift | Fetch
Looking: TypeAlias = Generator[Request, Any, JobPage]


class _Source(msgspec.Struct, frozen=True):
    """Some branches that hold all the wanted jobs between them, and what they do not answer for (None: nothing)."""

    branches: Sequence[Branch]
    rest: JobFilter | None


class _Stretch(msgspec.Struct, frozen=True):
    ids: list[UUID]
    edge: UUID | None  # the last id that was looked at; None: there is nothing beyond
    walked: int = 0  # how many ids that took


def listing(wanted: JobFilter) -> Looking:
    """Find the page that `wanted` asks for; send() it the answer to each request."""
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
            found += stretch.ids if source.rest is None else (yield Sift(stretch.ids, source.rest))
            if len(found) >= wanted.limit or stretch.edge is None or (left <= 0 and source.rest is not None):
                break
            each = max(each, min(each * _GROWTH, left // len(source.branches)))
            stretch = yield from _walk(source, low, stretch.edge, each)
    jobs: list[JobRecord] = (yield Fetch(found[: wanted.limit])) if found else []
    following = found[wanted.limit - 1] if len(found) > wanted.limit else stretch.edge
    return JobPage(
        # One that has moved on since it was found is left out.
        [job for job in jobs if wanted.state is None or job.state is wanted.state],
        following,
        wanted.since if following is None else _time(following),
    )


def needle(text: str) -> str:
    """`text` as it is spelt within JSON."""
    return msgspec.json.encode(text).decode()[1:-1]


def _range(wanted: JobFilter) -> tuple[UUID, UUID]:
    """The ids from the first that may be listed to just beyond the last."""
    low = _LOWEST if wanted.since is None else ids.first_from(wanted.since)
    bounds = [_HIGHEST]
    if wanted.before is not None:
        bounds.append(wanted.before)
    if wanted.until is not None:
        bounds.append(ids.first_from(wanted.until))
    return low, min(bounds)


def _sources(wanted: JobFilter) -> Generator[Request, Any, list[_Source]]:
    """Every way to find the wanted jobs; none if there can be no such jobs."""
    kinds = _kinds(wanted)
    if kinds == []:
        return []
    asked = msgspec.structs.replace(wanted, kind=None, kinds=kinds, correlation_id=None, subject=wanted.subject or None)
    if wanted.correlation_id is not None:
        branches = [Branch(Index.CORRELATION, wanted.correlation_id)]
        if _is_id(wanted.correlation_id):
            branches.append(Branch(Index.OWN, wanted.correlation_id))
        return [_source(branches, asked)]
    found: list[_Source] = []
    if kinds is not None or wanted.queue is not None:
        pairs = [Branch(Index.KIND_QUEUE, kind, queue) for kind, queue in (yield KindQueues(kinds, wanted.queue))]
        if not pairs:
            return []
        if len(pairs) * _FEWEST <= SEARCHED:  # else it is quicker to look at all jobs, of whatever kind
            found.append(_source(pairs, asked, kinds=None, queue=None))
    if wanted.tenant is not None:
        found.append(_source([Branch(Index.TENANT, wanted.tenant)], asked, tenant=None))
    if wanted.state is State.COMPLETED:
        found.append(_source([Branch(Index.FINISHED)], asked))
    elif wanted.state is not None and wanted.state.final:
        found.append(_source([Branch(Index.UNHAPPY, wanted.state.value)], asked, state=None))
    elif wanted.state is not None:
        found.append(_source([Branch(Index(wanted.state.value))], asked, state=None))
    if wanted.error_class is not None and (wanted.state is None or not wanted.state.final):
        # Most jobs that wait have no error yet; one that has was tried before.
        unhappy = [Branch(Index.UNHAPPY, state.value) for state in _UNHAPPY if wanted.state is None]
        found.append(_source([Branch(Index.TRIED), *unhappy], asked))
    return found or [_source([Branch(Index.JOB)], asked)]


def _source(branches: Sequence[Branch], asked: JobFilter, **answered: None) -> _Source:
    rest = msgspec.structs.replace(asked, **answered)
    open_questions = (rest.state, rest.kinds, rest.queue, rest.tenant, rest.subject, rest.error_class, rest.text)
    return _Source(branches, rest if any(question is not None for question in open_questions) else None)


def _narrowest(
    sources: Sequence[_Source], low: UUID, high: UUID, limit: int
) -> Generator[Request, Any, tuple[_Source, int, _Stretch]]:
    """The source that goes back furthest with a stretch of the same length, and that stretch."""
    walked: list[tuple[_Source, int, _Stretch]] = []
    for source in sources:
        # One more than requested shows whether there is a next page.
        count = limit + 1 if source.rest is None else max(limit + 1, FIRST)
        each = max(-(-count // len(source.branches)), min(_FEWEST, count))
        walked.append((source, each, (yield from _walk(source, low, high, each))))
        if walked[-1][2].edge is None:
            break
    return min(walked, key=lambda one: one[2].edge or _LOWEST)


def _walk(source: _Source, low: UUID, high: UUID, each: int) -> Generator[Request, Any, _Stretch]:
    parts: list[list[UUID]] = yield Walk(source.branches, low, high, each)
    edge = max((part[-1] for part in parts if len(part) == each), default=None)
    # One that was tried before it ended unhappily stands in two branches.
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
