"""Encryption at rest: a ring of keys that seals values for a job, and opens them."""

import base64
import binascii
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dutiful.core.errors import CannotOpen, KeysMissing, UsageError
from dutiful.core.sealed import SEALED, Envelope, Owner

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
_ID = re.compile(r"[A-Za-z0-9._-]{1,40}", re.ASCII)


class KeyRing:
    """Keys by their ids, 32 bytes each: the first seals, all of them open.

    `KeyRing({"2026-11": key, "2026-05": old})`, with keys as bytes or their Base64.
    """

    __slots__ = ("_cipher", "_keys", "current")

    def __init__(self, keys: Mapping[str, bytes | str]) -> None:
        if not isinstance(keys, Mapping):  # never shown: it may be a key
            raise UsageError('the keys of a key ring must be a mapping of ids to keys, as in KeyRing({"2026-11": key})')
        if not keys:
            raise UsageError("a key ring needs a key: make one with `dutiful encryption key`")
        self._cipher = _cipher()
        self._keys = {_check_id(name): _read_key(name, key) for name, key in keys.items()}
        self.current = next(iter(self._keys))

    @classmethod
    def read(cls, texts: Iterable[str]) -> "KeyRing":
        """A ring from texts like "2026-11:Base64", as the setting encryption_keys has them."""
        return cls(read_keys(texts))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def __repr__(self) -> str:
        return f"<key ring of {', '.join(self._keys)}>"

    def __reduce__(self) -> Any:
        raise TypeError("a key ring is not pickled, so that its keys end up in no file: give each process its own")

    def seal(self, plain: bytes, owner: Owner) -> Envelope:
        key, nonce = self.current, os.urandom(NONCE_BYTES)
        cipher = self._cipher(self._derived(key, owner)).encrypt(nonce, plain, _bound(key, owner))
        return Envelope(1, key, owner, base64.b64encode(nonce + cipher).decode())

    def open(self, envelope: Envelope, owner: Owner | None = None) -> bytes:
        """The value; `owner`: for whom it has to be sealed, as the row says in which it was found."""
        from cryptography.exceptions import InvalidTag

        key = envelope.key
        if key not in self._keys:
            raise CannotOpen(
                f"it is sealed with the key {key!r}, which is not in the ring here ({', '.join(self._keys)}): add it "
                "to encryption_keys, and run the job again",
                key,
            )
        if owner is not None and owner != envelope.of:
            raise CannotOpen(f"it was sealed for another {_difference(envelope.of, owner)}: it was moved here", key)
        try:
            data = base64.b64decode(envelope.text, validate=True)
            return self._cipher(self._derived(key, envelope.of)).decrypt(
                data[:NONCE_BYTES], data[NONCE_BYTES:], _bound(key, envelope.of)
            )
        except (InvalidTag, ValueError):
            raise CannotOpen(
                f"it was changed since it was sealed, or the key {key!r} is another one under the same id", key
            ) from None

    def reseal(self, envelope: Envelope) -> Envelope:
        """The same value, sealed with the current key for the same owner."""
        return self.seal(self.open(envelope), envelope.of)

    def _derived(self, key: str, owner: Owner) -> bytes:
        # One key for each job, so that random nonces of 96 bits stay far from their limit of 2**32 values for one key.
        return hmac.digest(self._keys[key], b"dutiful 1 " + owner.job.encode(), "sha256")


def _bound(key: str, owner: Owner) -> bytes:
    """What is authenticated beside the value."""
    return msgspec.json.encode([1, key, owner])


def _difference(of: Owner, owner: Owner) -> str:
    for name in ("tenant", "kind", "job"):
        if getattr(of, name) != getattr(owner, name):
            return name
    return "field"


def _cipher() -> "type[AESGCM]":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError("encryption needs the package cryptography: pip install 'dutiful[encryption]'") from None
    return AESGCM


def _check_id(name: str) -> str:
    if not isinstance(name, str) or _ID.fullmatch(name) is None:
        raise UsageError(
            "the id of an encryption key must be 1 to 40 letters, digits, dots, dashes and underscores, as in "
            "2026-11:KEY; it is shown, so it is not the key"
        )
    return name


def _read_key(name: str, key: bytes | str) -> bytes:
    """The key's bytes; no error shows any of it."""
    raw = b""
    if isinstance(key, bytes):
        raw = key
    elif isinstance(key, str):
        try:
            raw = base64.b64decode(key.strip(), validate=True)
        except binascii.Error:
            raw = b""
    if len(raw) != KEY_BYTES:
        raise UsageError(
            f"the encryption key {name!r} is malformed: it must be the Base64 of {KEY_BYTES} bytes; make one with "
            "`dutiful encryption key`"
        )
    return raw


def read_keys(texts: Iterable[str]) -> dict[str, bytes]:
    """The keys of the setting encryption_keys, by their ids; needs no other package."""
    keys: dict[str, bytes] = {}
    for text in texts:
        name, colon, key = text.partition(":")
        if not colon:  # it may be a key, so it is not shown
            raise UsageError("setting encryption_keys has a key without an id: write each as ID:KEY, as in 2026-11:KEY")
        if _check_id(name) in keys:
            raise UsageError(f"setting encryption_keys has two keys {name!r}: give each an id of its own")
        keys[name] = _read_key(name, key)
    return keys


def no_keys(why: str) -> KeysMissing:
    return KeysMissing(
        f"{why}, and this process has no key: set encryption_keys (DUTIFUL_ENCRYPTION_KEYS) to ID:KEY; make a key with "
        "`dutiful encryption key`"
    )


def new_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


class JobSeal:
    """Seals and opens the values of one job."""

    __slots__ = ("_job", "_kind", "_origin", "_ring", "_tenant")

    def __init__(self, ring: KeyRing, job: str, tenant: str | None, kind: str, origin: str | None = None) -> None:
        """`origin`: for which job or schedule the payload was sealed, if this one is a copy."""
        self._ring = ring
        self._job = job
        self._origin = origin or job
        self._tenant = tenant
        self._kind = kind

    def seal(self, part: str, value: str) -> dict[str, Any]:
        """{"$sealed": envelope} of a JSON text."""
        sealed: dict[str, Any] = {SEALED: msgspec.to_builtins(self._ring.seal(value.encode(), self._owner(part)))}
        return sealed

    def seal_text(self, part: str, value: str | None) -> str | None:
        """The same as text; None for None."""
        return None if value is None else msgspec.json.encode(self.seal(part, value)).decode()

    def open(self, part: str, envelope: Envelope) -> str:
        try:
            return self._ring.open(envelope, self._owner(part)).decode()
        except CannotOpen as error:
            raise CannotOpen(f"the {part} cannot be opened: {error}", error.key) from None

    def mark(self, text: str) -> str:
        """A short hash that says nothing about the text to those without the current key."""
        ring = self._ring
        return hmac.digest(ring._keys[ring.current], b"dutiful 1 mark " + text.encode(), "sha256").hex()[:16]

    def _owner(self, part: str) -> Owner:
        return Owner(self._origin if part == "payload" else self._job, self._tenant, self._kind, part)
