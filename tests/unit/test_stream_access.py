"""Who loses a right while a stream is open, or guesses from many addresses, is noticed."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from dutiful.core.principal import Principal, Role
from dutiful.web.admission import Admission
from dutiful.web.api import status
from dutiful.web.auth import Caller
from dutiful.web.limits import BURST, STREAMS
from dutiful.web.problems import Problem

ADA = Principal(name="ada", role=Role.MANAGER)
CALLER = Caller(ADA, by_token=True)
LATER: dict[str, Caller | None] = {
    "demoted": Caller(Principal(name="ada", role=Role.VIEWER), by_token=True),
    "moved to a tenant": Caller(Principal(name="ada", role=Role.MANAGER, tenant="acme"), by_token=True),
    "another person": Caller(Principal(name="bob", role=Role.MANAGER), by_token=True),
    "revoked": None,
}


class Streaming:
    """One stream of a reader, whose credentials the test changes."""

    def __init__(self) -> None:
        self.admission = Admission(None, None)  # type: ignore[arg-type]
        self.caller: Caller | None = CALLER
        self.request: Any = SimpleNamespace(state=SimpleNamespace())

    async def authenticate(self) -> Caller | None:
        return self.caller

    async def begin(self, caller: Caller | None = CALLER) -> Any:
        async def handle(request: Any) -> Any:
            return request.state

        return await self.admission._stream(handle, self.request, "bucket", self.authenticate, caller)


async def pieces() -> AsyncGenerator[bytes, None]:
    for number in range(10):
        yield b"%d" % number


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
async def test_a_stream_ends_at_the_next_check_after_its_reader_has_lost_a_right(
    later: Caller | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "RECHECK", -1.0)  # at every piece
    streaming = Streaming()
    state: Any = await streaming.begin()
    read = []
    async for piece in status._limited(pieces(), state.still_allowed):
        read.append(piece)
        if len(read) == 3:
            streaming.caller = later
    assert read == [b"0", b"1", b"2"]


async def test_a_reader_who_keeps_the_same_rights_reads_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "RECHECK", -1.0)
    state: Any = await Streaming().begin()
    assert len([piece async for piece in status._limited(pieces(), state.still_allowed)]) == 10


async def test_a_reader_of_a_public_status_has_no_right_to_lose() -> None:
    streaming = Streaming()
    streaming.caller = None
    state: Any = await streaming.begin(caller=None)
    assert await state.still_allowed()


async def test_a_stream_that_cannot_begin_gives_its_place_back() -> None:
    streaming = Streaming()

    async def fail(request: Any) -> Any:
        raise ValueError("no such job")

    for _ in range(STREAMS + 1):
        with pytest.raises(ValueError, match="no such job"):
            await streaming.admission._stream(fail, streaming.request, "bucket", streaming.authenticate, CALLER)
    for _ in range(STREAMS):
        await streaming.begin()
    with pytest.raises(Problem):
        await streaming.begin()


def test_who_guesses_from_all_addresses_of_a_network_is_slowed_down() -> None:
    admission = Admission(None, None)  # type: ignore[arg-type]
    operation: Any = SimpleNamespace(role=Role.STAFF)

    def guess(address: str) -> int:
        with pytest.raises(Problem) as refused:
            admission._anonymous(operation, address)
        return refused.value.status

    assert [guess(f"2001:db8::{number:x}") for number in range(BURST)] == [401] * BURST
    assert guess("2001:db8::ffff:ffff") == 429, "an IPv6 client has its whole /64"
    assert guess("2001:db8:0:1::1") == 401, "another network"
    assert guess("10.0.0.1") == 401
