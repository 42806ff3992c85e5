"""A worker of the documentation host with windows: `dutiful worker docverse_worker:app`, in the folder of this file.

DOCVERSE_WINDOWS is a JSON object: `delay`, the longest wait in seconds in every window; `hold`, by organization the
phase in which its jobs stop for ever, each after it has made a file of that name in the folder `reached`; `log`, a file
to which every operation is appended.
"""

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

from docverse_parts import Window, watched

from dutiful.context import CURRENT
from examples.docverse.config import Config
from examples.docverse.database import Database
from examples.docverse.jobs import docverse_app

ASKED = json.loads(os.environ.get("DOCVERSE_WINDOWS", "{}"))
HOLD: dict[str, str] = ASKED.get("hold", {})
LOG = os.open(ASKED["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "log" in ASKED else None
# A statement in the middle of each phase.
FIRST = {
    "inventory": "upsert_objects",
    "tracking": "releases_before",
    "editions": "publishing",
    "dashboard": "shown_editions",
}


class Delays(Window):
    """Waits before and after each operation, for a random time."""

    async def before(self, operation: str, key: str) -> None:
        await pause()
        note("begin", operation, key)

    async def after(self, operation: str, key: str) -> None:
        note("end", operation, key)
        await pause()


async def pause() -> None:
    if longest := ASKED.get("delay"):
        await asyncio.sleep(random.random() ** 3 * longest)  # mostly short, sometimes long


def note(moment: str, operation: str, key: str) -> None:
    job = CURRENT.get()
    if LOG is not None and job is not None:
        # One write, so lines of several processes do not mix; they are in the order of their times.
        line = [time.monotonic_ns(), moment, str(job.job_id), job.phase, operation, key]
        os.write(LOG, json.dumps(line).encode() + b"\n")


def slowed(call: Any) -> Any:
    """Statements are windows, too: between reading what an edition shows and writing, say."""

    async def slow(self: Database, name: str, *args: Any) -> Any:
        job = CURRENT.get()
        held = None if job is None else HOLD.get(job.tenant or "")
        if job is not None and held is not None and (job.phase, name) == (held, FIRST[held]):
            await asyncio.to_thread(Path(ASKED["reached"], held).touch)
            await asyncio.Event().wait()
        await pause()
        return await call(self, name, *args)

    return slow


for name in ("one", "all", "value", "run"):
    setattr(Database, name, slowed(getattr(Database, name)))

app = docverse_app(Config.read(os.environ), watched(Delays()))
