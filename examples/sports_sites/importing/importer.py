"""The import: row by row, in transactions of a hundred, each row recorded with its job."""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from dutiful import Dutiful, IllegalTransition, JobNotFound, StoreUnavailable, UsageError
from examples.sports_sites.importing.database import Database, Row, database
from examples.sports_sites.importing.rows import READERS, Wanted
from examples.sports_sites.jobs import Jobs

BATCH = 100
NEVER = timedelta(days=365)  # a job that is to become a dead letter must not run before


@dataclass
class Imported:
    """The result of importing one old queue."""

    queue: str
    jobs: int = 0
    same: int = 0  # rows for which a job exists already
    dead: int = 0
    over: int = 0  # rows that are done
    bad: dict[int, str] = field(default_factory=dict)  # the problem by row

    def __str__(self) -> str:
        counts = f"{self.jobs} jobs, {self.same} enqueued already, {self.dead} dead letters, {self.over} done"
        return f"{self.queue}: {counts}, {len(self.bad)} bad"


async def import_queues(app: Dutiful) -> list[Imported]:
    """Can be interrupted and repeated; the old workers have to be stopped first."""
    jobs = Jobs(app, by="import")
    async with database(app) as old:
        if missing := READERS.keys() - await old.tables():
            raise UsageError(f"this database has no {', '.join(sorted(missing))}: is it that of the old queues?")
        async with app:  # opened before a transaction locks the file
            async with old.transaction():
                await old.run("make_imported_rows")
            runs = [await _Run(jobs, old, Imported(queue)).go() for queue in READERS]
            await _fail_given_up(jobs, old)
    return runs


class _Run:
    """The import of one old queue."""

    def __init__(self, jobs: Jobs, old: Database, imported: Imported) -> None:
        self._jobs = jobs
        self._old = old
        self._imported = imported
        self._queue = imported.queue

    async def go(self) -> Imported:
        after = None  # before the first row
        while True:
            async with self._old.transaction():
                rows = await self._old.run(self._queue, after, BATCH)
                for row in rows:
                    await self._take(row)
            if not rows:
                return self._imported
            after = rows[-1]["row_id"]

    async def _take(self, row: Row) -> None:
        try:
            wanted = READERS[self._queue](row)
            if wanted is None:
                self._imported.over += 1
            else:
                async with self._old.savepoint():
                    await self._enqueue(row["row_id"], wanted)
        except (OSError, StoreUnavailable):
            raise  # the database is unavailable, which is not the fault of a row
        except Exception as error:  # a bad row must not stop the others
            self._imported.bad[row["row_id"]] = str(error) or repr(error)

    async def _enqueue(self, row_id: int, wanted: Wanted) -> None:
        given_up = wanted.error is not None
        job = await self._jobs.enqueue(
            wanted.type,
            wanted.payload,
            run_at=datetime.now(UTC) + NEVER if given_up else wanted.run_at,
            # Without a key, because a dead letter is no duplicate of a live job.
            dedup_key=None if given_up else wanted.dedup_key,
            correlation_id=f"{self._queue}-{row_id}",
            max_attempts=wanted.max_attempts,
            within=self._old.connection,
        )
        await self._old.run("note", self._queue, row_id, str(job.id), wanted.error)
        self._imported.dead += given_up
        self._imported.jobs += job.created and not given_up
        self._imported.same += not job.created


async def _fail_given_up(jobs: Jobs, old: Database) -> None:
    """Makes dead letters of rows that had been given up, also those that an earlier run did not reach."""
    for row in await old.run("not_failed_yet"):
        # It has ended or was deleted since, if an earlier run or a parallel one was interrupted here.
        with suppress(IllegalTransition, JobNotFound):
            await jobs.move_to_dead_letter(UUID(row["job_id"]), row["error"])
        await old.run("note_failed", row["source"], row["row_id"])
