"""How host names of webhooks are resolved: one that is never found does not delay others."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from dutiful.maintenance.webhooks.address_guard import AddressGuard, Unreachable


@pytest.fixture
def guard() -> Iterator[AddressGuard]:
    guard = AddressGuard([ip_network("127.0.0.0/8")])
    yield guard
    guard.close()


async def test_a_name_that_is_never_found_holds_up_no_other(
    guard: AddressGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    answer = threading.Event()

    def look_up(host: str, port: int, **kinds: Any) -> list[Any]:
        asked[host] += 1
        if host == "dead.example":
            answer.wait(20)
            raise OSError("no name server has answered")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        dead = [asyncio.create_task(guard.addresses("dead.example", 443)) for _ in range(100)]
        gone = asyncio.create_task(guard.addresses("dead.example", 443))
        async with asyncio.timeout(10):
            assert await guard.addresses("alive.example", 443) == [ip_address("127.0.0.1")]
            assert await guard.addresses("127.0.0.2", 80) == [ip_address("127.0.0.2")]
            gone.cancel()
            await asyncio.wait([gone])
            waiting = [thread for thread in threading.enumerate() if thread.name.startswith("dutiful names")]
            assert waiting and all(thread.daemon for thread in waiting), "no process waits for them at its end"
            answer.set()
            for one in dead:
                with pytest.raises(Unreachable, match=r"dead\.example was not found: no name server has answered"):
                    await one
    finally:
        answer.set()
    assert asked == {"dead.example": 1, "alive.example": 1}
    await asyncio.sleep(0)
    assert await guard.addresses("alive.example", 443) and asked["alive.example"] == 2, "it is asked for each time"
