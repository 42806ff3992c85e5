"""Requests to services that the operator has configured: bounded answers, no redirects, no secret in an error."""

import threading
from typing import Any
from urllib.parse import urlsplit

import httpx2

from dutiful.core.errors import UsageError

READ_LIMIT = 64 * 1024  # bytes of an answer
SHOWN = 200  # characters of an answer in an error
STEP_TIMEOUT = 30.0  # seconds to connect, and for each read; the channel's timeout bounds the whole call


class HttpRefused(Exception):
    """The service answered with a status that is no success, or with something else than was agreed."""

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        if status_code is not None:
            self.status_code = status_code


class HttpService:
    """One client for all calls of a provider, which may come from several threads."""

    def __init__(self, url: str, token: str | None, setting: str) -> None:
        self.url = check_url(url, setting).rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None

    def post(self, url: str, body: dict[str, Any], key: str, what: str) -> Any:
        """Posts JSON with the idempotency key and the token; returns the JSON of the answer, None if it has none."""
        headers = {**self._headers, "Idempotency-Key": key}
        status, data = self._send("POST", url, what, headers=headers, json=body)
        if not 200 <= status < 300:
            raise HttpRefused(f"{what} answered {status}{_shown(data)}", status)
        try:
            return httpx2.Response(status, content=data).json() if data.strip() else None
        except ValueError:
            return None

    def delete(self, url: str, what: str) -> tuple[int, bytes]:
        """Deletes at an address that needs no token; returns the status and the beginning of the answer."""
        return self._send("DELETE", url, what)

    def _send(self, method: str, url: str, what: str, **options: Any) -> tuple[int, bytes]:
        try:
            with self._ready().stream(method, url, **options) as response:
                return response.status_code, _first_bytes(response)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # Without its message, which may have the address, and so a signature, in it.
            raise ConnectionError(f"{what} could not be reached: {type(error).__name__}") from None

    def _ready(self) -> httpx2.Client:
        with self._lock:  # once: it reads the certificates that the system trusts
            if self._client is None:
                self._client = httpx2.Client(timeout=STEP_TIMEOUT, follow_redirects=False)
            return self._client


def check_url(url: str, setting: str) -> str:
    """An http or https address; an error does not repeat it."""
    try:
        parts = urlsplit(url.strip())
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(f"{setting} must be an address that begins with https:// or http://")
    return url.strip()


def _first_bytes(response: httpx2.Response) -> bytes:
    read = bytearray()
    for part in response.iter_bytes():
        read += part
        if len(read) >= READ_LIMIT:
            break
    return bytes(read[:READ_LIMIT])


def _shown(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return f": {text[:SHOWN]}" if text else ""
