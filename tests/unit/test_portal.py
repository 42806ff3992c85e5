"""A blocking caller comes back, whatever the database does."""

import asyncio
import threading

import pytest

from dutiful import StoreUnavailable, sync
from dutiful.client import Client
from dutiful.sync import Portal


def test_closing_frees_a_caller_whose_database_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "LAST_WORDS", 0.1)
    opening = threading.Event()
    told: list[BaseException] = []

    async def open_client() -> Client:
        opening.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def close(client: Client) -> None: ...

    portal = Portal(open_client, close)

    def call() -> None:
        try:
            portal.run(lambda _: asyncio.sleep(0))
        except BaseException as error:
            told.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert opening.wait(5)
    portal.close()
    caller.join(5)
    assert [type(error) for error in told] == [StoreUnavailable]
