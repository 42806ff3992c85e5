"""One POST against real servers that hang, drip, redirect, lie about their name or send too much."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from receivers import Call, answer, drip_body, drip_head, hang, receiving, send_garbage

from databases import missing
from dutiful.core.webhooks.endpoint import Network
from dutiful.maintenance.webhooks.address_guard import AddressGuard, Forbidden, Unreachable
from dutiful.maintenance.webhooks.http import READ_LIMIT, WebhookHttp

HERE: Sequence[Network] = [ip_network("127.0.0.0/8")]
NET = 6.0  # seconds: for a post that would never end, no measure of how soon it should


def http(networks: Sequence[Network] = HERE, timeout: float = 10, context: ssl.SSLContext | None = None) -> WebhookHttp:
    # An empty context trusts no certificate, and is made faster than one with all certificates of the system.
    return WebhookHttp(AddressGuard(networks), timeout, context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def name_leads_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Resolves names to the next of `answers` at each lookup; returns the names."""
    asked: list[str] = []

    def resolve(host: str, port: int, **kinds: Any) -> list[Any]:
        asked.append(host)
        places = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


async def test_a_post_arrives_as_it_was_sent() -> None:
    async with receiving(answer(201, b"thanks")) as receiver:
        response = await http().post(f"{receiver.url}?a=b%20c", {"webhook-id": "1"}, "größe".encode())
    (call,) = receiver.calls
    assert (response.status, response.body) == (201, b"thanks")
    assert (call.path, call.body, call.headers["webhook-id"]) == ("/hook?a=b%20c", "größe".encode(), "1")
    assert call.headers["host"] == receiver.url.split("/")[2]


@pytest.mark.parametrize("reply", [hang, drip_head])
async def test_a_receiver_that_takes_too_long_is_left(reply: Any) -> None:
    async with receiving(reply) as receiver:
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
            await asyncio.wait_for(http(timeout=0.3).post(receiver.url, {}, b"{}"), NET)
    assert len(receiver.calls) == 1


async def test_a_status_counts_even_if_the_body_never_ends() -> None:
    async with receiving(drip_body) as receiver:
        response = await asyncio.wait_for(http(timeout=0.3).post(receiver.url, {}, b"{}"), NET)
    assert response.status == 200 and set(response.body) == {ord("x")}


async def test_of_a_large_answer_only_the_beginning_is_read() -> None:
    read_to_the_end = asyncio.get_running_loop().create_future()

    async def flood(call: Call, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(500, b"y" * 10_000_000)(call, writer)
            read_to_the_end.set_result(True)
        except ConnectionError:
            read_to_the_end.set_result(False)

    async with receiving(flood) as receiver:
        response = await http().post(receiver.url, {}, b"{}")
        assert not await asyncio.wait_for(read_to_the_end, 10)
    assert (response.status, len(response.body)) == (500, READ_LIMIT)


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with receiving() as inside, receiving(answer(301, location=inside.url)) as receiver:
        assert (await http().post(receiver.url, {}, b"{}")).status == 301
    assert inside.connections == 0


async def test_what_does_not_speak_http_or_is_not_there_is_unreachable() -> None:
    async with receiving(send_garbage) as receiver:
        with pytest.raises(Unreachable):
            await http().post(receiver.url, {}, b"{}")
    with pytest.raises(Unreachable):  # the server has gone
        await http().post(receiver.url, {}, b"{}")
    with pytest.raises(Unreachable, match="was not found"):
        await http().post("http://no-such-host.invalid/", {}, b"{}")


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        await http().post(receiver.url, {}, b"{}")
    assert (proxy.connections, len(receiver.calls)) == (0, 1)


async def test_a_name_that_leads_inside_is_refused_even_if_it_leads_outside_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with receiving() as receiver:
        port = receiver.url.split(":")[2]
        name_leads_to(monkeypatch, ["93.184.215.14", "127.0.0.1"])
        with pytest.raises(Forbidden, match=r"hooks\.example leads to .*127\.0\.0\.1 is a loopback.*webhook_networks"):
            await http(networks=()).post(f"http://hooks.example:{port}", {}, b"{}")
    assert receiver.connections == 0


async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver:
        port = receiver.url.split(":")[2].partition("/")[0]
        asked = name_leads_to(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])  # the second answer is the attack
        await http().post(f"http://hooks.example:{port}/x", {}, b"{}")
    assert asked == ["hooks.example"]
    assert [(call.path, call.headers["host"]) for call in receiver.calls] == [("/x", f"hooks.example:{port}")]


async def test_a_name_without_an_address_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    name_leads_to(monkeypatch, [])
    with pytest.raises(Unreachable, match="was not found"):
        await http().post("http://hooks.example/", {}, b"{}")


async def test_another_address_of_the_receiver_is_tried_when_one_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver:
        port = receiver.url.split(":")[2].partition("/")[0]
        name_leads_to(monkeypatch, ["127.0.0.2", "127.0.0.1"])  # no server listens at the first
        assert (await http().post(f"http://hooks.example:{port}/", {}, b"{}")).status == 204


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key, for hooks.example."""
    if shutil.which("openssl") is None:
        missing("openssl, to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    key = file.with_suffix(".key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example", "-out", file, "-keyout", key],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_text(file.read_text() + key.read_text())
    return file


async def test_tls_is_verified_for_the_name_though_an_address_is_connected_to(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str | None] = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    server.sni_callback = lambda connection, name, context: names.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with receiving(tls=server) as receiver:
        port = receiver.url.split(":")[2].partition("/")[0]
        name_leads_to(monkeypatch, ["127.0.0.1"])
        assert (await http(context=trusting).post(f"https://hooks.example:{port}/", {}, b"{}")).status == 204
        assert names == ["hooks.example"]
        for name, context in (("other.example", trusting), ("hooks.example", ssl.create_default_context())):
            with pytest.raises(Unreachable, match="certificate"):
                await http(context=context).post(f"https://{name}:{port}/", {}, b"{}")
    assert len(receiver.calls) == 1


async def test_posts_to_one_address_do_not_share_a_connection() -> None:
    """One that was verified for another name would carry them otherwise."""
    async with receiving() as receiver:
        sender = http()
        await asyncio.gather(*[sender.post(receiver.url, {}, b"{}") for _ in range(3)])
        await sender.post(receiver.url, {}, b"{}")
    assert (receiver.connections, [call.body for call in receiver.calls]) == (4, [b"{}"] * 4)
