"""The job that a service works for: ports.Job over the context of a Dutiful handler."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from uuid import UUID

from dutiful import Context, DutifulError, Items


class RunningJob:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._items: Items | None = None

    @property
    def id(self) -> UUID:
        return self._ctx.job_id

    def lock(self, namespace: str, key: int) -> AbstractAsyncContextManager[object]:
        return self._ctx.lock(namespace, key)

    def message(self, text: str) -> None:
        self._ctx.progress(message=text)

    def ends_by(self, error: Exception) -> bool:
        return isinstance(error, DutifulError)

    def start_editions_phase(self, slugs: Iterable[str]) -> None:
        self._items = self._ctx.items(slugs)

    def mark_edition_completed(self, slug: str) -> None:
        self._started.complete(slug)

    def mark_edition_skipped(self, slug: str, reason: str) -> None:
        self._started.skip(slug, reason)

    def mark_edition_failed(self, slug: str, error: Exception) -> str | None:
        if self.ends_by(error):
            return None
        self._started.fail(slug, error)
        return self._started.failed[slug]

    @property
    def _started(self) -> Items:
        assert self._items is not None, "start_editions_phase comes first"
        return self._items
