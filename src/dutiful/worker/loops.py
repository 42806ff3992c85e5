"""Background loops: one that fails is logged and begun again."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dutiful.core.errors import DutifulError

log = logging.getLogger("dutiful.worker")


async def forever(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A background loop logs once and goes on."""
    pause = 0.1
    while True:
        began = time.monotonic()
        try:
            await loop()
        except DutifulError as error:
            log.warning("%s: %s", loop.__name__.strip("_"), error)
        except Exception:
            log.exception("%s met an error and goes on", loop.__name__.strip("_"))
        pause = 0.1 if time.monotonic() - began > 5 else min(pause * 2, 2.0)
        await asyncio.sleep(pause)


async def cancel(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Bounded, for a task may catch its cancellation and go on for ever."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=2)
