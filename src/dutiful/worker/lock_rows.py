"""Locks as rows, where no connection can hold them: asked for again and again, in line."""

import asyncio
import logging

from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import Token
from dutiful.locking import Locking, LockName

log = logging.getLogger("dutiful.worker")
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.02, 0.25, 1.5
TRIES = 5  # to free a lock; after that it is freed with its claim


async def acquire(locking: Locking, token: Token, name: LockName) -> None:
    """Wait for it; interrupted, it is neither held nor waited for."""
    try:
        pause, away = FIRST_PAUSE, False
        while True:
            try:
                if await _ask(locking, token, name):
                    return
                away = False
            except StoreUnavailable as error:
                if not away:
                    log.warning("waiting for the lock %s, but the database is away: %s", name, error)
                away = True
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE)
    except BaseException:
        await release(locking, token, name)
        raise


async def release(locking: Locking, token: Token, name: LockName) -> None:
    pause = FIRST_PAUSE
    for _ in range(TRIES):
        try:
            await locking.unlock(token, name)
            return
        except StoreUnavailable as error:
            last = error
        await asyncio.sleep(pause)
        pause *= 4
    log.warning("could not free the lock %s, so it is held until its job ends: %s", name, last)


async def _ask(locking: Locking, token: Token, name: LockName) -> bool:
    asking = asyncio.ensure_future(locking.try_lock(token, name))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        # It may be granted still; freed before that, it would be held by nobody who knows.
        await asyncio.gather(asking, return_exceptions=True)
        raise
