"""Authentication: by the host application, or by a token."""

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from starlette.requests import Request

from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.json import check_name
from dutiful.core.principal import Origin, Principal, Role, check_tenant
from dutiful.store import Store
from dutiful.store.tokens import TokenStore, hash_of
from dutiful.web.problems import Problem

Authenticate = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
CHALLENGE = 'Bearer realm="dutiful"'
TOUCH = 60.0
REFRESH = 1.0  # seconds at least in between, because requests without a valid token trigger it
MOST_TOUCHED = 10_000
_BEARER = re.compile(r"bearer +([\w.~+/=-]{1,200})", re.ASCII | re.IGNORECASE)
log = logging.getLogger("dutiful.web")


class Caller(NamedTuple):
    principal: Principal
    by_token: bool  # otherwise by the host, whose cookies a browser sends with any request


class Authentication:
    """Asks the host's authentication first, then looks for a token.

    A token is found by its hash, so that the time it takes reveals nothing about the secret.
    """

    def __init__(self, authenticate: Authenticate | None = None) -> None:
        self._authenticate = authenticate
        self._refreshed_at = -REFRESH
        self._touched: OrderedDict[UUID, float] = OrderedDict()
        self._touching: set[asyncio.Task[None]] = set()

    async def caller(self, request: Request, store: Store, address: str) -> Caller | None:
        """The principal of a request; None without valid credentials."""
        by_host = await self._from_host(request)
        known = by_host or await self._bearer(request, store)
        if known is None:
            return None
        return Caller(msgspec.structs.replace(known, origin=Origin.API, address=address), by_token=by_host is None)

    async def _from_host(self, request: Request) -> Principal | None:
        if self._authenticate is None:
            return None
        answer = self._authenticate(request)
        known = await answer if isawaitable(answer) else answer
        return None if known is None else read_principal(known)

    async def _bearer(self, request: Request, store: Store) -> Principal | None:
        found = _BEARER.fullmatch(request.headers.get("authorization", "").strip())
        if found is None:
            return None
        hashed = hash_of(found[1])
        token = await store.tokens.find(hashed)
        if token is None and await self._refreshed(store):
            token = await store.tokens.find(hashed)
        if token is None or not token.valid(datetime.now(UTC)):
            return None
        self._touch(token.id, store.tokens)
        return Principal(name=token.name, role=token.role, tenant=token.tenant)

    async def _refreshed(self, store: Store) -> bool:
        """Refreshes the tenants' state: a store that does not know yet that they are on finds no tokens."""
        now = time.monotonic()
        if store.tenants is None or now - self._refreshed_at < REFRESH:
            return False
        self._refreshed_at = now
        await store.tenants.refresh()
        return True

    def _touch(self, token_id: UUID, tokens: TokenStore) -> None:
        """Writes that a token was used, at most once a minute and in the background."""
        now = time.monotonic()
        if now - self._touched.get(token_id, -TOUCH) < TOUCH:
            return
        self._touched[token_id] = now
        self._touched.move_to_end(token_id)
        while len(self._touched) > MOST_TOUCHED:
            self._touched.popitem(last=False)
        task = asyncio.create_task(_touch(tokens, token_id))
        self._touching.add(task)  # the event loop keeps only a weak reference
        task.add_done_callback(self._touching.discard)


async def _touch(tokens: TokenStore, token_id: UUID) -> None:
    try:
        await tokens.touch([token_id])
    except DutifulError as error:
        log.warning("the last use of a token could not be written: %s", error)


def read_principal(given: Any) -> Principal:
    """Validates the principal that the host returned; TypeError if it is invalid, because that is a bug of the host."""
    if not isinstance(given, Principal):
        raise TypeError(f"authenticate returned {type(given).__name__}: it must return a Principal or None")
    try:
        role = Role(given.role)
    except ValueError:
        raise TypeError(
            f"authenticate returned a Principal with the role {given.role!r:.80}: it must be one of {', '.join(Role)}"
        ) from None
    tenant = str(given.tenant) if isinstance(given.tenant, int) else given.tenant
    try:
        check_name(given.name, "name")
        if tenant is not None:
            check_tenant(check_name(tenant, "tenant"))
    except UsageError as error:
        raise TypeError(f"authenticate returned a Principal that is invalid: {error}") from None
    return msgspec.structs.replace(given, role=role, tenant=tenant)


def check_same_site(request: Request, allowed: Collection[str] = ()) -> None:
    """Refuses requests from pages of other sites, with which a browser sends the host's cookies, too."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if origin is not None and origin in allowed:
        return
    same = site in ("same-origin", "none") if site else origin is None or _host(origin) == request.headers.get("host")
    if not same:
        raise Problem(
            403, "this request came from a page of another site; send it from a page of this site, or with a token"
        )


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
