"""Receivers of webhooks, good and bad: real servers on this machine."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from running_workers import eventually
from standardwebhooks import Webhook

from dutiful.core.webhooks.message import new_secret

SECRET = new_secret(b"s" * 32)
Reply = Callable[["Call", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Call:
    path: str
    headers: dict[str, str]
    body: bytes

    def verified(self, secret: str = SECRET) -> Any:
        """Its message, if the signature is right."""
        return Webhook(secret).verify(self.body, self.headers)


@dataclass
class Receiver:
    """Answers each call with the next of `replies`, and then always with the last."""

    replies: Sequence[Reply]
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    url: str = ""
    serving: set["asyncio.Task[None]"] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self.serve(reader, writer))
        self.serving.add(serving)
        serving.add_done_callback(self.serving.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            call = Call(first.split()[1], headers, await reader.readexactly(int(headers["content-length"])))
            self.calls.append(call)
            await self.replies[min(len(self.calls), len(self.replies)) - 1](call, writer)
        writer.close()

    async def called(self, times: int = 1) -> list[Call]:
        async def arrived() -> bool:
            return len(self.calls) >= times

        await eventually(arrived)
        return self.calls

    @property
    def received(self) -> list[str]:
        """The public ids of the jobs in its calls."""
        return [json.loads(call.body)["data"]["id"] for call in self.calls]


@asynccontextmanager
async def receiving(*replies: Reply, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Receiver]:
    receiver = Receiver(replies or (ok,))
    server = await asyncio.start_server(receiver.accept, "127.0.0.1", port, ssl=tls)
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield receiver
    finally:
        server.close()
        hanging = list(receiver.serving)
        for serving in hanging:
            serving.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


def answer(status: int, body: bytes = b"", **headers: str) -> Reply:
    async def reply(call: Call, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} As It Is", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return reply


ok = answer(204)


async def hang(call: Call, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drip_head(call: Call, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx-drip: ")
    await drip(writer)


async def drip_body(call: Call, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    await drip(writer)


async def drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def send_garbage(call: Call, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 smtp.example ready\r\n\r\n")
    await writer.drain()


def until(gate: asyncio.Event, reply: Reply = ok) -> Reply:
    async def wait(call: Call, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await reply(call, writer)

    return wait
