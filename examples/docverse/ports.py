"""What services need of the world around them: a queue, the job that they run in, an object store, an edge."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import IO, Any, Protocol
from uuid import UUID


class QueueBackend(Protocol):
    """Delivers jobs; the state of a job is read from its record, never from here."""

    async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = "default") -> str | None:
        """Stores a job and has it delivered; its id in the backend, or None if that is not known yet."""

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        """What the backend knows of a job, for diagnostics; None if it does not know it."""

    async def get_job_result(self, backend_job_id: str) -> object | None:
        """The result of a completed job; None if it is not available."""


class Job(Protocol):
    """The job that a service works for: its locks, and its progress."""

    @property
    def id(self) -> UUID: ...

    def lock(self, namespace: str, key: int) -> AbstractAsyncContextManager[object]:
        """Excludes every other job of the fleet from a block; waits as long as necessary."""

    def message(self, text: str) -> None:
        """Reports what the current phase does."""

    def ends_by(self, error: Exception) -> bool:
        """Whether an error is the whole job's: it was cancelled, say, or has lost a lock."""

    def start_editions_phase(self, slugs: Iterable[str]) -> None:
        """Begins the progress of editions: all of them are in progress."""

    def mark_edition_completed(self, slug: str) -> None: ...
    def mark_edition_skipped(self, slug: str, reason: str) -> None: ...
    def mark_edition_failed(self, slug: str, error: Exception) -> str | None:
        """The error as the record shows it; None, and nothing is marked, if it ends the whole job."""


@dataclass(frozen=True)
class ObjectInfo:
    key: str
    content_hash: str  # SHA-256 in hexadecimal
    content_type: str
    size: int


class ObjectStore(Protocol):
    """Objects by key. A put replaces an object as a whole: no reader sees half of it."""

    async def put(self, key: str, data: bytes | IO[bytes]) -> None:
        """A file is read in pieces: some are larger than the memory."""

    async def get(self, key: str) -> bytes:
        """KeyError if there is none."""

    async def objects(self, prefix: str) -> list[ObjectInfo]:
        """The objects below a prefix, by key; empty if there is none."""

    async def copy(self, source: str, target: str) -> None: ...
    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes those that exist."""

    async def move(self, prefix: str, target: str) -> bool:
        """Moves everything below a prefix, at once; False if there is nothing (any more)."""

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes everything below a prefix; the number of objects."""


@dataclass(frozen=True)
class Pointer:
    """What the edge keeps for an edition: the build it shows."""

    build: str
    prefix: str


class Edge(Protocol):
    """One organization's keys and caches at the CDN's edge."""

    async def point(self, key: str, pointer: Pointer, fence: int) -> bool:
        """Sets a key. False, and nothing is changed, if a writer with a higher number has set or deleted it."""

    async def unpoint(self, key: str, fence: int) -> bool:
        """Deletes a key. False, and nothing is changed, as for `point`."""

    async def purge(self, path: str) -> None:
        """Drops what is cached of a path and everything below it."""
