"""Checks where webhooks may go: URLs in one spelling, and public addresses only.

A URL must not reach what only this network can reach, whichever way its address is written.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from dutiful.core.errors import UsageError
from dutiful.core.redaction.redact import REDACTED, redact

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

LONGEST = 2_000
PORTS = {"http": 80, "https": 443}
_PRINTABLE = re.compile(r"[!-\[\]-~]+")  # ASCII without spaces and the backslash, which some take for a slash
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_AFTER_HOST = ("/", "?", "#")
_ORIGIN = re.compile(r"([^/?#]*://)?[^/?#]*[/?#]?")
_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))

_GLOBAL_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_MORE_SPECIAL = (
    IPv4Network("168.63.129.16/32"),  # Azure's internal services
    IPv4Network("192.0.0.0/24"),  # protocol assignments, some of which ipaddress exempts
    IPv4Network("192.88.99.0/24"),  # relays from 6to4
    IPv6Network("2001::/23"),  # protocol assignments, Teredo among them
    IPv6Network("3fff::/20"),  # documentation
)


def check_url(url: str, networks: Sequence[Network], what: str = "webhook") -> str:
    """The URL in its normal form; UsageError says what is wrong with it and what to do."""
    if not isinstance(url, str) or not url or len(url) > LONGEST:
        shown = _shown(url)[:80] if isinstance(url, str) else f"{url!r:.80}"
        raise UsageError(f"{what} {shown} must be a URL of at most {LONGEST:,} characters")
    shown = _shown(url)
    if not _PRINTABLE.fullmatch(url):
        raise UsageError(f"{what} {shown} has characters that no URL has; write others as %20 and a name as xn--…")
    parts = _split(url)
    if parts is None:
        raise UsageError(f"{what} is not a URL that can be read: check its host and its port")
    host, port = parts.hostname or "", parts.port
    if parts.scheme not in PORTS or not host:
        raise UsageError(f"{what} {shown} must begin with https:// (or http://) and a host")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{what} at {host} has credentials in its URL; leave them out, messages are signed")
    if parts.fragment or url.endswith("#"):
        raise UsageError(f"{what} {shown} has a fragment, which no server ever sees; leave out what follows #")
    if port == 0:
        raise UsageError(f"{what} {shown} has port 0; leave it out or give the right one")
    spelled = _check_host(host, networks, what)
    authority = spelled if port in (None, PORTS[parts.scheme]) else f"{spelled}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{authority}{parts.path or '/'}{query}"


def _split(url: str) -> SplitResult | None:
    """None for what is no URL; the parser's own error may quote a password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  it is read when it is asked for
    except ValueError:
        return None
    return parts


def _shown(url: str) -> str:
    """As errors show it: without secrets, and not at all if it may have a password in the wrong place."""
    return REDACTED if "@" in url else f"{redact(url)!r:.200}"


def origin(url: str) -> str:
    """Scheme, host and port with a slash (or the character that follows): the prefix of all URLs of one receiver.

    Works for any text, because URLs inserted by SQL are not checked.
    """
    found = _ORIGIN.match(url)
    assert found is not None
    return found[0] if found[0][-1:] in _AFTER_HOST else f"{found[0]}/"


def refusal(address: Address, networks: Sequence[Network]) -> str | None:
    """Why nothing may be posted to this address, or None; addresses in `networks` are always allowed."""
    addresses = (address, *_inside(address))
    if any(one in network for one in addresses for network in networks):
        return None
    if any(not _public(one) for one in addresses):
        what = next((name for name, is_so in _CATEGORIES if any(is_so(one) for one in addresses)), "a reserved")
        return f"{address} is {what} address"
    return None


def read_network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise UsageError(
            f'setting webhook_networks: {error}; write networks as "10.1.0.0/16" or "fd00::/8", with commas between'
        ) from None


def remedy(address: Address) -> str:
    return f'if you trust it, allow it by the setting webhook_networks, as in "{ip_network(address)}"'


def _check_host(host: str, networks: Sequence[Network], what: str) -> str:
    address = _literal(host.removesuffix("."), what)
    if address is not None:
        if reason := refusal(address, networks):
            raise UsageError(f"{what} {host}: {reason}; {remedy(address)}")
        return f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    name = host.removesuffix(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise UsageError(f"{what}: {host!r:.80} is no host's name")
    if name.rpartition(".")[2] == "localhost" and all(refusal(one, networks) for one in _LOOPBACK):
        raise UsageError(f"{what}: {host} is this machine; {remedy(_LOOPBACK[0])}")
    return name


def _literal(host: str, what: str) -> Address | None:
    """The address that `host` spells, including old spellings that resolvers still accept: 0x7f.1, 017700000001."""
    if ":" in host:
        if "%" in host:
            raise UsageError(f"{what}: {host} names one of this machine's links; give a public address or a name")
        try:
            return ip_address(host)
        except ValueError:
            raise UsageError(f"{what}: {host!r:.80} is no address") from None
    parts = host.split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise UsageError(f"{what}: {host!r:.80} is neither a host's name nor an address")
    try:
        *first, last = (_number(part) for part in parts)
        if any(number > 255 for number in first):
            raise ValueError
        high = sum(number << 8 * (3 - place) for place, number in enumerate(first))
        if last >> 8 * (4 - len(first)):
            raise ValueError
        return IPv4Address(high + last)
    except ValueError:
        raise UsageError(f"{what}: {host!r:.80} is no address: its numbers are too large or malformed") from None


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if text.startswith("0") else 10)


def _inside(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 address that an IPv6 one leads to through a translator or a tunnel."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address in _NAT64:
            yield IPv4Address(int(address) & 0xFFFF_FFFF)


def _public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        if any(True for _ in _inside(address)):
            return True  # the address inside counts, and is checked by itself
        if address not in _GLOBAL_6:
            return False
    if any(address in network for network in _MORE_SPECIAL):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


_CATEGORIES: tuple[tuple[str, Callable[[Address], bool]], ...] = (
    ("a loopback", lambda one: one.is_loopback),
    ("a link-local (cloud metadata)", lambda one: one.is_link_local),
    ("a multicast", lambda one: one.is_multicast),
    ("an unspecified", lambda one: one.is_unspecified),
    ("a reserved", lambda one: one.is_reserved),
    ("a private", lambda one: one.is_private),
)
