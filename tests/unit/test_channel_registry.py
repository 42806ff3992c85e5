"""The registry of channels: what may be a provider, and how its request is read."""

from dataclasses import dataclass
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest

from dutiful.channels import ChannelCall, Channels, EmailRequest, FileDeletion, SmsRequest
from dutiful.channels.channels import RequestInvalid
from dutiful.core.errors import DutifulError, UsageError
from dutiful.settings import Settings

CALL = ChannelCall(UUID(int=7), "key", 1)


class Push(msgspec.Struct):
    device: str
    text: str = "hello"


@dataclass
class Fax:
    number: int


class Wire(TypedDict):
    text: str


@pytest.mark.req("S2", "S37", "S62")
def test_a_provider_takes_a_struct_a_dataclass_or_a_dict() -> None:
    channels = Channels()

    @channels.channel("push")
    async def push(request: Push, call: ChannelCall) -> None: ...

    @channels.channel("fax")
    def fax(request: Fax, *, call: ChannelCall) -> None: ...

    @channels.channel("wire")
    def wire(request: Wire) -> None: ...

    @channels.channel("any", timeout="5s")
    def any_(request, retries: int = 3): ...  # type: ignore[no-untyped-def]

    assert channels["push"].read({"device": "d"}) == Push("d")
    assert channels["fax"].read({"number": 5}) == Fax(5)
    assert channels["wire"].read({"text": "t"}) == {"text": "t"}
    assert channels["any"].read(None) == {}
    assert [channels[name].is_async for name in channels] == [True, False, False, False]
    assert channels["push"].arguments("r", CALL) == channels["fax"].arguments("r", CALL) == (("r",), {"call": CALL})
    assert channels["wire"].arguments("r", CALL) == (("r",), {})
    assert channels["any"].timeout.total_seconds() == 5 and channels["push"].timeout.total_seconds() == 60


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({}, "missing required field `device`"),
        ({"device": 5}, r"Expected `str`, got `int` - at `\$.device`"),
        ([], "Expected `object`"),
        ("secret", "Expected `object`"),
    ],
)
def test_a_payload_that_is_no_request_is_refused_without_its_values(payload: Any, problem: str) -> None:
    channels = Channels()
    channels.channel("push")(_takes_push)
    with pytest.raises(RequestInvalid, match=f"no request of the channel push: .*{problem}"):
        channels["push"].read(payload)


class Explosive(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        raise {0: KeyError("n"), 1: SystemExit(3)}[self.n]


def test_a_request_that_raises_while_it_is_made_is_refused() -> None:
    channels = Channels()

    @channels.channel("explosive")
    def explode(request: Explosive) -> None: ...

    for n in (0, 1):
        with pytest.raises(RequestInvalid, match="no request of the channel explosive"):
            channels["explosive"].read({"n": n})


def _takes_push(request: Push) -> None: ...


def test_what_cannot_be_a_provider_is_refused() -> None:
    def none() -> None: ...
    def two(request: Push, other: int) -> None: ...
    def by_name(*, request: Push) -> None: ...
    def many(*requests: Push) -> None: ...
    def unknown(request: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def odd(request: type[int]) -> None: ...
    def either(request: Push | Fax) -> None: ...

    for function in (none, two, by_name, many, unknown, odd, either):
        with pytest.raises(UsageError, match="channel push"):
            Channels().channel("push")(function)


def test_a_channel_has_one_provider_a_plain_name_and_some_time() -> None:
    channels = Channels()
    channels.email(_takes_push)
    with pytest.raises(UsageError, match="has a provider already"):
        channels.channel("email")(_takes_push)
    with pytest.raises(UsageError, match="takes no provider"):
        channels.channel("db_function")(_takes_push)
    with pytest.raises(UsageError, match="timeout of channel sms is 0"):
        channels.sms(_takes_push, timeout=0)
    with pytest.raises(DutifulError, match="channel"):
        channels.channel(" ")(_takes_push)


@pytest.mark.req("S2")
def test_the_channels_that_settings_configure_are_made_unless_they_are_declared() -> None:
    settings = Settings(smtp_url="smtp://localhost", sms_url="http://localhost", files_url="https://localhost/f/")
    channels = Channels()
    channels.sms(_takes_push)
    channels.add_configured(settings)

    assert set(channels) == {"email", "sms", "file_delete"}
    assert channels["sms"].function is _takes_push
    assert [channels[name].request for name in ("email", "file_delete")] == [EmailRequest, FileDeletion]
    assert Channels.from_settings(settings)["sms"].request is SmsRequest
    assert list(Channels.from_settings(Settings(sms_token="t", files_token="t"))) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"smtp_url": "http://u:hunter2@host"},
        {"smtp_url": "smtp://u:hunter2@host:port"},
        {"smtp_url": "smtp://u:hunter2@host?to=x"},
        {"smtp_url": "u:hunter2@host"},
        {"sms_url": "ftp://u:hunter2@host"},
        {"sms_url": "http://u:hunter2@host:x"},
        {"files_url": "hunter2"},
    ],
)
def test_a_wrong_address_is_refused_without_being_repeated(wrong: dict[str, str]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=name) as raised:
        Channels.from_settings(Settings(**wrong))  # type: ignore[arg-type]
    assert "hunter2" not in str(raised.value) and raised.value.__cause__ is None
