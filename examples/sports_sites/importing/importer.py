"""The import itself: row by row, in transactions of a hundred, each row written down with the job that it became."""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from dutiful import Dutiful, IllegalTransition, JobNotFound, StoreUnavailable, UsageError
from examples.sports_sites.importing.database import Database, Row, database
from examples.sports_sites.importing.rows import READERS, Wanted
from examples.sports_sites.jobs import Jobs

BATCH = 100
NEVER = timedelta(days=365)  # a job that is about to be a dead letter must not run before it is


@dataclass
class Imported:
    """What one run made of one old queue."""

    queue: str
    jobs: int = 0
    same: int = 0  # a job that is there already stands for them
    dead: int = 0
    over: int = 0  # nothing is to be done any more
    bad: dict[int, str] = field(default_factory=dict)  # left as they are, by row

    def __str__(self) -> str:
        counts = f"{self.jobs} jobs, {self.same} asked for already, {self.dead} dead letters, {self.over} over"
        return f"{self.queue}: {counts}, {len(self.bad)} bad"


async def import_queues(app: Dutiful) -> list[Imported]:
    """Whatever stops it, another run goes on where it ended; the old workers have to be stopped first."""
    jobs = Jobs(app, by="import")
    async with database(app) as old:
        if missing := READERS.keys() - await old.tables():
            raise UsageError(f"this database has no {', '.join(sorted(missing))}: is it that of the old queues?")
        async with (
            app
        ):  # opened when it is known that there is something to do, and before a transaction holds the file
            async with old.transaction():
                await old.run("make_ledger")
            runs = [await _Run(jobs, old, Imported(queue)).go() for queue in READERS]
            await _bury(jobs, old)
    return runs


class _Run:
    """One old queue."""

    def __init__(self, jobs: Jobs, old: Database, imported: Imported) -> None:
        self._jobs = jobs
        self._old = old
        self._imported = imported
        self._queue = imported.queue

    async def go(self) -> Imported:
        after = None  # before every row that there may be
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
            raise  # the database is gone: no row is to blame for that
        except Exception as error:  # whatever is wrong with one row, it must not hold up the others for good
            self._imported.bad[row["row_id"]] = str(error) or repr(error)

    async def _enqueue(self, row_id: int, wanted: Wanted) -> None:
        given_up = wanted.error is not None
        job = await self._jobs.enqueue(
            wanted.type,
            wanted.payload,
            run_at=datetime.now(UTC) + NEVER if given_up else wanted.run_at,
            # A dead letter stands for itself, and must not be taken for the work of a job that lives.
            dedup_key=None if given_up else wanted.dedup_key,
            correlation_id=f"{self._queue}-{row_id}",
            max_attempts=wanted.max_attempts,
            within=self._old.connection,
        )
        await self._old.run("note", self._queue, row_id, str(job.id), wanted.error)
        self._imported.dead += given_up
        self._imported.jobs += job.created and not given_up
        self._imported.same += not job.created


async def _bury(jobs: Jobs, old: Database) -> None:
    """What had been given up becomes a dead letter; also what an earlier run did not come to."""
    for row in await old.run("unburied"):
        # It has ended, or is gone since: an earlier run, or another beside this one, came so far and no further.
        with suppress(IllegalTransition, JobNotFound):
            await jobs.move_to_dead_letter(UUID(row["job_id"]), row["error"])
        await old.run("note_buried", row["source"], row["row_id"])
