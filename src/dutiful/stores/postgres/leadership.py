"""Leadership in Postgres: a row with a holder and an expiry."""

from datetime import datetime, timedelta
from uuid import UUID

from dutiful.store.leadership import DEFAULT_PATIENCE, Patience, Survey
from dutiful.stores.postgres.engine.subject import Session, Subject
from dutiful.stores.postgres.promotion import PostgresPromotion

_SURVEY = "leads, now_at, next_run_at, next_fire_at, expired, blocked, next_post_at, reviewing, unsealed"


class PostgresLeadership(Subject):
    def __init__(self, session: Session, promotion: PostgresPromotion) -> None:
        super().__init__(session)
        self._promotion = promotion

    async def survey(
        self, worker_id: UUID, ttl: timedelta, patience: Patience = DEFAULT_PATIENCE, *, now: datetime | None = None
    ) -> Survey:
        asked = worker_id, ttl, self._promotion.run_floor, patience.gap, patience.hold, now
        return Survey(*(await self._rows("survey", _SURVEY, *asked))[0])

    async def resign(self, worker_id: UUID) -> None:
        await self._db.fetch(self._sql["resign"], worker_id)
