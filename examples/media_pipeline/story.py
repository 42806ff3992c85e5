"""The story: files are processed, with all sorts of failures; then the results are checked."""

import asyncio
import base64
import os
import signal
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from examples.media_pipeline.event_log import EventLog
from examples.media_pipeline.media import make, sample_files
from examples.media_pipeline.origin import Origin
from examples.media_pipeline.queue import JobQueue
from examples.media_pipeline.service import media_queue, order
from examples.serving import serving

OLD = "whsec_" + base64.b64encode(b"the old key of the media service").decode()
NEW = "whsec_" + base64.b64encode(b"the new key of the media service").decode()
STALE, DELETED = timedelta(seconds=1), timedelta(seconds=3)
DEADLINE = 60.0
MADE_OF = {
    "dawn.png": "dawn.ppm",
    "dunes.png": "dunes.ppm",
    "moor.png": "heath.ppm",
    "weather.json": "weather.csv",
}


async def run_story(console: Console, folder: Path) -> bool:
    """Returns whether all checks pass."""
    console.print("Drawing landscapes and measuring the weather…")
    origin = Origin(await asyncio.to_thread(sample_files), OLD, rate=2e6)
    async with asyncio.timeout(DEADLINE), serving(origin.asgi) as url:
        queue = media_queue(
            folder,
            webhook_url=f"{url}/hooks",
            webhook_secrets=(NEW, OLD),  # signed with both, so that the receiver can change secrets at any time
            stale_after=STALE,
            delete_after=DELETED,
            retry_delay=timedelta(seconds=0.5),
        )
        await queue.app.make_store().migrate()
        story = Story(console, folder, origin, url, queue)
        listening = asyncio.Event()
        following = asyncio.create_task(_follow(queue, story.log, listening))
        await listening.wait()
        lost = await story.crash()
        await story.restart(lost)
        await story.work()
        await story.retention()
        await story.shutdown()
        await following
    return story.check()


async def _follow(queue: JobQueue, log: EventLog, listening: asyncio.Event) -> None:
    async with aclosing(queue.create_event_stream(snapshot=True)) as stream:
        async for event in stream:
            if event.name == "snapshot":
                listening.set()
            elif event.job_id is not None:
                await log.add(event.job_id, event)


@dataclass
class Story:
    console: Console
    folder: Path
    origin: Origin
    url: str
    queue: JobQueue
    log: EventLog = field(init=False)
    kept: list[str] = field(default_factory=list)  # the phases of the job whose process was killed
    left: int = -1  # jobs in the database at the end

    def __post_init__(self) -> None:
        self.log = EventLog(self.console)

    async def crash(self) -> str:
        self._chapter("A crash: a process is killed while its upload waits for the receipt")
        self.origin.hold("products/heath.png")
        job_id = await self._enqueue("heath", "heath.ppm")
        command = [sys.executable, "-m", "examples.media_pipeline.worker_process", str(self.folder)]
        # On Postgres, a dead process is detected when its lease ends.
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "DUTIFUL_LEASE": "3s"})
        while not self.origin.puts["heath.png"]:
            if process.returncode is not None:
                raise RuntimeError(f"the other process ended with {process.returncode} before it could be killed")
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        self.origin.release("products/heath.png")
        return job_id

    async def restart(self, lost: str) -> None:
        self._chapter("The service starts: the job of the killed process is failed, its phases are kept")
        await self.queue.open()
        await self.log.wait_for(lost, "job:failed")
        job = await self.queue.get(lost)
        self.kept = [] if job is None else [f"{phase.name} {phase.status}" for phase in job.phases]
        self._aside(", ".join(self.kept))
        await self.log.wait_for(lost, "job:webhook:delivered")

    async def work(self) -> None:
        self._chapter("Six files: one is missing, one upload fails once, one is cancelled, one is delayed")
        self.origin.fail("products/dunes.png")
        self.origin.hold("products/fjord.png")
        cancelled = await self._enqueue("fjord", "fjord.ppm")
        await self._enqueue("dawn", "dawn.ppm")
        await self._enqueue("dunes", "dunes.ppm")
        await self._enqueue("nowhere", "nowhere.ppm")
        await self._enqueue("weather", "weather.csv", at=datetime.now(UTC) + timedelta(seconds=2))
        await self._enqueue("moor", "heath.ppm", webhook_url=f"{self.url}/hooks/gone")
        await self.log.wait_for(cancelled, "job:phase:completed")
        await self.queue.cancel(cancelled)
        await self.log.wait_for(cancelled, "job:webhook:delivered")
        self.origin.release("products/fjord.png")
        self.origin.rotate(NEW)
        self._aside("the receiver of webhooks uses its new secret now")
        await self.log.wait_for_all("job:webhook:delivered", "job:webhook:failed")

    async def retention(self) -> None:
        self._chapter(f"Retention: stale {STALE.seconds} s after the end, deleted after {DELETED.seconds} s")
        await self.log.wait_for_all("job:deleted")
        self.left = len(await self.queue.jobs())

    async def shutdown(self) -> None:
        self._chapter("Shutdown: no job is running, so none is interrupted")
        await self.queue.shutdown("5s")

    def check(self) -> bool:
        """Compares the events with what the origin received."""
        self._chapter("Checks")
        origin, log = self.origin, self.log
        made = {product: make(origin.files[file], lambda _: None).body for product, file in MADE_OF.items()}
        received = sorted(message["type"] for message in origin.messages.values())
        files = list((self.folder / "files").iterdir())
        checks = {
            "7 jobs ended, each of them once": log.ends() == {"completed": 4, "failed": 2, "cancelled": 1},
            "the dead process's phases were kept": self.kept
            == ["download completed", "process completed", "upload interrupted"],
            "the retry did not download again": (origin.gets["dunes.ppm"], origin.puts["dunes.png"]) == (1, 2),
            "the delayed job did not start early": log.on_time(),
            "4 products were uploaded, each correct to the byte": origin.products == made,
            "6 webhooks arrived, with the same outcomes as the events": received
            == ["job.cancelled", *3 * ["job.completed"], *2 * ["job.failed"]],
            "all had valid signatures, before and after the change of secrets": origin.refused == 0
            and log.count("job:webhook:delivered") == 6,
            "the webhook that answered 410 was reported": log.count("job:webhook:failed") == 1,
            "every job became stale, then was deleted with its files": self.left == 0
            and not files
            and log.count("job:stale") == log.count("job:deleted") == 7,
        }
        for line, true in checks.items():
            self.console.print(f"  {'[green]✓[/]' if true else '[red]✗[/]'} {line}", highlight=False)
        return all(checks.values())

    async def _enqueue(
        self, title: str, file: str, *, at: datetime | None = None, webhook_url: str | None = None
    ) -> str:
        job_id = await self.queue.enqueue(order(self.url, file, title), scheduled_at=at, webhook_url=webhook_url)
        self.log.expect(job_id, title)
        return job_id

    def _chapter(self, title: str) -> None:
        name, colon, about = title.partition(":")
        self.console.print(f"\n[bold]{name}[/]{colon}{about}", highlight=False, soft_wrap=True)

    def _aside(self, text: str) -> None:
        self.console.print(f"         {text}", style="dim", highlight=False)
