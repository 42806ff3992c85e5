"""What happened before a stream began, read page by page as its reader asks for more."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.event import Event, JobView
from dutiful.watcher.seen import Seen
from dutiful.watching import Watching

PAGE = 2_000
# How much later than its own time a fact may come to light, besides what the store makes up for by itself.
LATE = timedelta(seconds=2)
TOGETHER = 500


class History:
    """Events since a moment; ordered within a job, and within a page."""

    def __init__(self, watching: Watching, since: datetime) -> None:
        self._watching = watching
        self._begin = self._since = since
        self._seen = Seen()
        self._over = False

    async def page(self) -> list[Event] | None:
        """The next ones, perhaps none; None when it has come to the present."""
        if self._over:
            return None
        stirred = await self._watching.stirred(self._since, PAGE)
        fresh = self._seen.fresh(stirred.stirs)
        views = await views_of(self._watching, fresh)
        events = self._seen.news(fresh, views, stirred.tombstones, self.cutoff)
        self._since, self._over = stirred.until, not stirred.more
        return events

    @property
    def cutoff(self) -> datetime:
        """Nothing on the next page happened earlier."""
        return max(self._begin, self._since - LATE)


async def views_of(watching: Watching, job_ids: Iterable[UUID]) -> dict[UUID, JobView]:
    """Those that exist, in portions that no other statement has to wait long for."""
    wanted = list(job_ids)
    portions = [wanted[start : start + TOGETHER] for start in range(0, len(wanted), TOGETHER)]
    return {view.job.id: view for portion in portions for view in await watching.views(portion)}
