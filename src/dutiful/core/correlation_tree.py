"""The jobs of one correlation id as a tree."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.job import JobRecord, OnFailure
from dutiful.core.states import State


class Relation(StrEnum):
    """The relation of a job to the one above it."""

    CHILD = "child"  # its handler enqueued it
    RETRY = "retry"  # it is a new run of that job
    AFTER = "after"  # it depends on that job, the newest of those


class Need(msgspec.Struct, frozen=True):
    """A job that another one depends on, and what happens to that if it does not complete."""

    id: UUID
    on_failure: OnFailure


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the tree, without its payload; `under` is its parent, unless that is deleted or not in the tree."""

    id: UUID
    kind: str
    queue: str
    state: State
    attempt: int
    max_attempts: int
    tenant: str | None
    created_at: datetime
    created_by: str | None
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    gate: str | None  # why it is blocked
    parent_id: UUID | None
    retry_of: UUID | None
    error: dict[str, Any] | None = None  # type, message and class of the last one
    needs: tuple[Need, ...] = ()  # of very many, the newest
    needs_total: int = 0
    under: UUID | None = None
    relation: Relation | None = None
    depth: int = 0

    @classmethod
    def of(cls, job: JobRecord) -> "Member":
        facts = {name: getattr(job, name) for name in cls.__struct_fields__ if hasattr(job, name)}
        kept = None if job.error is None else {name: job.error.get(name) for name in ("type", "message", "class")}
        return cls(**facts | {"error": kept})


class CorrelationTree(msgspec.Struct, frozen=True):
    """The jobs of one correlation id, in the order of their creation; `cut`: there are more."""

    correlation_id: str
    members: tuple[Member, ...]
    cut: bool = False

    @classmethod
    def of(cls, correlation_id: str, members: Iterable[Member], *, cut: bool = False) -> "CorrelationTree":
        ordered = {one.id: one for one in sorted(members, key=lambda one: (one.created_at, one.id))}
        over = _edges(ordered)
        depths = _depths(ordered, over)
        return cls(
            correlation_id, tuple(_placed(one, over.get(one.id), depths[one.id]) for one in ordered.values()), cut
        )

    def tree(self) -> list[Member]:
        """Each job followed by those under it; siblings by age, but in a cut tree, branches with failed jobs first."""
        below: dict[UUID | None, list[Member]] = {}
        troubled = self._troubled() if self.cut else ()
        for member in sorted(self.members, key=lambda one: one.id not in troubled):
            below.setdefault(member.under, []).append(member)
        listed: list[Member] = []
        waiting = below.get(None, [])[::-1]
        while waiting:
            listed.append(member := waiting.pop())
            waiting += below.get(member.id, [])[::-1]
        return listed

    def _troubled(self) -> set[UUID]:
        """The jobs that failed, and all above them."""
        above = {one.id: one.under for one in self.members}
        found: set[UUID] = set()
        for member in self.members:
            here: UUID | None = member.id if member.state is State.FAILED else None
            while here is not None and here not in found:
                found.add(here)
                here = above[here]
        return found


def _edges(members: Mapping[UUID, Member]) -> dict[UUID, UUID]:
    """The member above each one: the job that it is a retry of, or its parent, or the newest that it depends on.

    Callers may name any parent, so a ring of parents is possible; its oldest member becomes the root.
    """
    over: dict[UUID, UUID] = {}
    for one in members.values():
        needs = sorted((need.id for need in one.needs), reverse=True)
        # A child that waits for other children of its parent stands below those.
        siblings = [need for need in needs if need in members and members[need].parent_id == one.parent_id]
        chosen = (one.retry_of, *siblings, one.parent_id, *needs)
        above = next((other for other in chosen if other in members and other != one.id), None)
        if above is not None:
            over[one.id] = above
    safe: set[UUID] = set()
    for start in members:  # the oldest first
        path: dict[UUID, None] = {}
        here: UUID | None = start
        while here is not None and here not in safe and here not in path:
            path[here] = None
            here = over.get(here)
        if here is not None and here in path:
            ring = list(path)[list(path).index(here) :]
            del over[min(ring, key=lambda one: (members[one].created_at, one))]
        safe.update(path)
    return over


def _depths(members: Iterable[UUID], over: Mapping[UUID, UUID]) -> dict[UUID, int]:
    below: dict[UUID | None, list[UUID]] = {}
    for one in members:
        below.setdefault(over.get(one), []).append(one)
    depths: dict[UUID, int] = {}
    level, depth = below.get(None, []), 0
    while level:
        depths |= dict.fromkeys(level, depth)
        level, depth = [child for one in level for child in below.get(one, ())], depth + 1
    return depths


def _placed(member: Member, under: UUID | None, depth: int) -> Member:
    if under is None:
        return member
    relation = Relation.AFTER
    if under in (member.retry_of, member.parent_id):
        relation = Relation.RETRY if under == member.retry_of else Relation.CHILD
    return msgspec.structs.replace(member, under=under, relation=relation, depth=depth)
