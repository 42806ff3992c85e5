"""A connection that listens for as long as somebody wants to hear."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

log = logging.getLogger("dutiful.delivery")
FIRST_RETRY, LONGEST_RETRY = 0.1, 5.0
# A connection that a firewall dropped says nothing: it is asked for a sign of life this often.
SIGN_OF_LIFE = 60.0


class Ear:
    """Listens on `channels`; `heard` gets channel and payload, `back` is called after every gap, the first included."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        channels: Sequence[str],
        heard: Callable[[str, str], None],
        back: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._channels = channels
        self._heard = heard
        self._back = back
        self._hearing: asyncio.Task[None] | None = None
        self.healthy = False

    def open(self) -> None:
        """Begin to listen, unless it has begun already."""
        if self._hearing is None:
            self._hearing = asyncio.create_task(self._hear(), name="dutiful listen")

    def stop(self) -> "asyncio.Task[None] | None":
        """Returns what is still to be waited for, if anybody cares."""
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
        return hearing

    async def _hear(self) -> None:
        """Listen for ever; a connection that ends is replaced."""
        pause = FIRST_RETRY
        while True:
            connection = None
            try:
                connection = await self._connect()
                gone = asyncio.Event()
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                for channel in self._channels:
                    await connection.add_listener(channel, self._on_notify)
                self.healthy = True
                pause = FIRST_RETRY
                self._back()
                while not gone.is_set():
                    try:
                        await asyncio.wait_for(gone.wait(), SIGN_OF_LIFE)
                    except TimeoutError:
                        await connection.execute("select 1", timeout=10)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.debug("listener: %s", error)
            finally:
                self.healthy = False
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_RETRY)

    def _on_notify(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        self._heard(channel, payload)
