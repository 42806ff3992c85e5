"""Fake external services: mail servers, calendars, and an SMTP server. Tests can make them fail."""

import asyncio
import email
import email.policy
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from examples.practice import ics
from examples.practice.platform import Addresses
from examples.serving import HOST, serving


@dataclass
class FakeServices:
    messages: dict[str, bytes] = field(default_factory=dict)  # by connection and id: "456/msg_789"
    calendars: dict[str, list[ics.Appointment]] = field(default_factory=dict)
    delivered: list[EmailMessage] = field(default_factory=list)
    fetched: Counter[str] = field(default_factory=Counter)
    _held: dict[str, asyncio.Event] = field(default_factory=dict)
    _slow_down: Counter[str] = field(default_factory=Counter)
    _busy: Counter[str] = field(default_factory=Counter)
    _closed: set[str] = field(default_factory=set)

    # --- failures on demand

    def slow_down(self, message: str, times: int = 1) -> None:
        """Answers the next requests for a message with 429 and Retry-After."""
        self._slow_down[message] += times

    def hold(self, message: str) -> None:
        """Delays requests for a message until it is released."""
        self._held[message] = asyncio.Event()

    def release(self, message: str) -> None:
        self._held.pop(message).set()

    def busy(self, address: str, times: int = 1) -> None:
        """Refuses the next mails to an address temporarily."""
        self._busy[address] += times

    def close(self, calendar_id: int) -> None:
        """Answers every request for a calendar with 503."""
        self._closed.add(str(calendar_id))

    # --- serving

    @asynccontextmanager
    async def open(self, port: int = 0, smtp_port: int = 0) -> AsyncIterator[Addresses]:
        """Serves them at these ports of this machine, or at free ones."""
        routes = [
            Route("/mail/{connection}/{message}", self._message),
            Route("/mail/{connection}/{message}", self._arrive, methods=["PUT"]),
            Route("/calendars/{calendar}", self._calendar),
            Route("/calendars/{calendar}/{entry}", self._enter, methods=["PUT"]),
        ]
        receiver = await asyncio.start_server(self._receive, HOST, smtp_port)
        try:
            async with serving(Starlette(routes=routes), port) as url:
                yield Addresses.at(url, receiver.sockets[0].getsockname()[1])
        finally:
            receiver.close()

    async def _message(self, request: Request) -> Response:
        name = "{connection}/{message}".format(**request.path_params)
        self.fetched[name] += 1
        if name in self._held:
            await self._held[name].wait()
        if self._slow_down[name] > 0:
            self._slow_down[name] -= 1
            return PlainTextResponse("slow down", 429, {"retry-after": "1"})
        found = self.messages.get(name)
        return Response(status_code=404) if found is None else Response(found, media_type="message/rfc822")

    async def _arrive(self, request: Request) -> Response:
        """A message arrives, and waits to be fetched."""
        self.messages["{connection}/{message}".format(**request.path_params)] = await request.body()
        return Response(status_code=201)

    async def _calendar(self, request: Request) -> Response:
        found = self.calendars.get(request.path_params["calendar"], [])
        return Response(ics.write(found), media_type="text/calendar")

    async def _enter(self, request: Request) -> Response:
        calendar = request.path_params["calendar"]
        if calendar in self._closed:
            return Response(status_code=503)
        (entry,) = ics.read((await request.body()).decode())
        entries = self.calendars.setdefault(calendar, [])
        entries[:] = [one for one in entries if one.uid != entry.uid] + [entry]
        return Response(status_code=201)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Implements the part of SMTP that a sender needs."""
        writer.write(b"220 ready\r\n")
        while line := await reader.readline():
            command = line.decode().strip().upper()
            if command.startswith("RCPT") and self._refused(line.decode()):
                writer.write(b"451 busy, try again later\r\n")
            elif command == "DATA":
                writer.write(b"354 go on\r\n")
                data = await reader.readuntil(b"\r\n.\r\n")
                text = data.removesuffix(b".\r\n").replace(b"\r\n..", b"\r\n.")
                self.delivered.append(email.message_from_bytes(text, policy=email.policy.default))
                writer.write(b"250 taken\r\n")
            elif command == "QUIT":
                writer.write(b"221 bye\r\n")
                break
            else:
                writer.write(b"250 fine\r\n")
        writer.close()

    def _refused(self, line: str) -> bool:
        address = line.partition("<")[2].partition(">")[0]
        refused = self._busy[address] > 0
        self._busy[address] -= refused
        return refused
