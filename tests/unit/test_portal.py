"""A blocking call returns even if the database never answers."""

import asyncio
import threading

import pytest

from dutiful import StoreUnavailable
from dutiful.client import sync
from dutiful.client.client import Client
from dutiful.client.sync import Portal


def test_closing_frees_a_caller_whose_database_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "CLOSE_TIMEOUT", 0.1)
    opening = threading.Event()
    errors: list[BaseException] = []

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
            errors.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert opening.wait(5)
    portal.close()
    caller.join(5)
    assert [type(error) for error in errors] == [StoreUnavailable]
