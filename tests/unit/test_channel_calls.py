"""What a provider returns: an answer of work that was done, or no answer at all."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from dutiful.channels import ChannelCall, Channels
from dutiful.channels.calls import Accepted, ProviderCalls, Refused

CALL = ChannelCall(UUID(int=7), "key", 1)
Request = dict[str, Any]
done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


async def send(client: str, request: Request) -> str:
    done.append(client)
    return client


def decorated(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(request: Request) -> Any:
        return function("decorated", request)

    del call.__wrapped__
    return call


class Sender:
    async def __call__(self, request: Request) -> str:
        return await send("object", request)


@pytest.mark.parametrize(
    ("provider", "client"),
    [
        (functools.partial(send, "partial"), "partial"),
        (functools.partial(functools.partial(send), "twice"), "twice"),
        (decorated(send), "decorated"),
        (Sender(), "object"),
    ],
)
async def test_an_async_provider_is_awaited_however_it_is_wrapped(provider: Any, client: str) -> None:
    channels = Channels()
    channels.channel("push")(provider)
    answer = await ProviderCalls(1).call(channels["push"], {}, CALL)
    assert answer == Accepted(client) and done == [client]


def generates(request: Request) -> Iterator[int]:
    done.append("generated")
    yield 1


async def generates_async(request: Request) -> AsyncIterator[int]:
    done.append("generated")
    yield 1


async def returns_work(request: Request) -> Any:
    return send("never", request)


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("provider", [generates, generates_async, returns_work])
async def test_work_that_was_not_done_is_not_accepted(provider: Any) -> None:
    channels = Channels()
    channels.channel("push")(provider)
    answer = await ProviderCalls(1).call(channels["push"], {}, CALL)
    assert isinstance(answer, Refused) and "has not run" in answer.text and done == []
