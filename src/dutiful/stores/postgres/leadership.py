"""Leadership in Postgres: a row with a holder and an expiry."""

import time
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.store.leadership import DEFAULT_PATIENCE, Patience, Survey
from dutiful.stores.postgres.engine.subject import Session, Subject
from dutiful.stores.postgres.promotion import LONG_AGO, PostgresPromotion

_SURVEY = (
    "leads, now_at, next_run_at, next_fire_at, expired, blocked, next_post_at, reviewing, unsealed, limited, waits, "
    "none_expired_at"
)
# Settled leases stay in the index of expiries while an old snapshot keeps vacuum away, and a search from its beginning
# walks over all of them: 100 ms for 300,000. So that takes at most a twentieth of the time, and other searches begin
# where the last one ended.
SHARE = 20


class PostgresLeadership(Subject):
    def __init__(self, session: Session, promotion: PostgresPromotion) -> None:
        super().__init__(session)
        self._promotion = promotion
        self._none_expired_at = LONG_AGO
        self._search_all_at = 0.0

    async def survey(
        self, worker_id: UUID, ttl: timedelta, patience: Patience = DEFAULT_PATIENCE, *, now: datetime | None = None
    ) -> Survey:
        began = time.monotonic()
        search_all = began >= self._search_all_at
        begin_at = LONG_AGO if search_all else self._none_expired_at
        asked = worker_id, ttl, self._promotion.run_floor, begin_at, patience.gap, patience.hold, now
        *found, none_expired_at = (await self._rows("survey", _SURVEY, *asked))[0]
        if search_all:
            self._search_all_at = began + SHARE * (time.monotonic() - began)
        if none_expired_at is not None:
            self._none_expired_at = none_expired_at
        return Survey(*found)

    async def resign(self, worker_id: UUID) -> bool:
        return bool(await self._db.fetch(self._sql["resign"], worker_id))

    async def is_vacant(self) -> bool:
        vacant: bool = (await self._db.fetch(self._sql["is_vacant"]))[0][0]
        return vacant
