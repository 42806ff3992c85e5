"""An object store in a folder: a key is a path, and a put is a rename, so that readers see whole objects only."""

import asyncio
import hashlib
import io
import mimetypes
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar
from uuid import uuid4

from examples.docverse.ports import ObjectInfo

T = TypeVar("T")
LONGEST_KEY, LONGEST_PART = 900, 200
INCOMING = ".incoming"  # no key has a part that begins with a dot and this name


class BadKey(ValueError):
    """A key that could leave its prefix, or that no file system keeps."""


def check_key(key: str) -> str:
    parts = key.split("/")
    problem = None
    if not key or len(key.encode(errors="replace")) > LONGEST_KEY:
        problem = f"has not 1 to {LONGEST_KEY} bytes"
    elif key.startswith("/"):
        problem = "is absolute"
    elif any(part in ("", ".", "..") for part in parts):
        problem = "has an empty part, `.` or `..`"
    elif any(len(part.encode(errors="replace")) > LONGEST_PART for part in parts):
        problem = f"has a part of over {LONGEST_PART} bytes"
    elif not key.isprintable() or "\\" in key:
        problem = "has a character that no key may have"
    if problem:
        raise BadKey(f"the key {key[:80]!r} {problem}")
    return key


def content_type(key: str) -> str:
    return mimetypes.guess_type(key, strict=False)[0] or "application/octet-stream"


class DirectoryObjectStore:
    """Implements ports.ObjectStore; calls block in threads, and their errors name keys, not paths of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / INCOMING
        self._incoming.mkdir(parents=True, exist_ok=True)

    async def put(self, key: str, data: bytes | IO[bytes]) -> None:
        await self._blocking(lambda: self.put_now(key, data))

    async def get(self, key: str) -> bytes:
        return await self._blocking(lambda: self.get_now(key))

    async def open(self, key: str) -> IO[bytes]:
        """The object as it is now, also if it is replaced meanwhile. KeyError if there is none."""
        return await self._blocking(lambda: self._open(key))

    async def objects(self, prefix: str) -> list[ObjectInfo]:
        return await self._blocking(lambda: self._objects(prefix))

    async def copy(self, source: str, target: str) -> None:
        await self._blocking(lambda: self._copy(source, target))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._blocking(lambda: self._delete(keys))

    async def move(self, prefix: str, target: str) -> bool:
        return await self._blocking(lambda: self._move(prefix, target))

    async def delete_prefix(self, prefix: str) -> int:
        return await self._blocking(lambda: self._delete_prefix(prefix))

    async def _blocking(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            if error.filename is None:
                raise
            # Members of an organization see what failed, and nothing of the host.
            where = str(error.filename).replace(f"{self._root}/", "")
            raise OSError(error.errno, f"{error.strerror} in the object store", where) from None

    def put_now(self, key: str, data: bytes | IO[bytes]) -> None:
        path, incoming = self._path(key), self._incoming / uuid4().hex
        try:
            with incoming.open("wb") as file:
                shutil.copyfileobj(io.BytesIO(data) if isinstance(data, bytes) else data, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                _remove_empty(path)
            incoming.replace(path)
        except BaseException:
            incoming.unlink(missing_ok=True)
            raise

    def get_now(self, key: str) -> bytes:
        with self._open(key) as file:
            return file.read()

    def _copy(self, source: str, target: str) -> None:
        with self._open(source) as file:
            self.put_now(target, file)

    def _open(self, key: str) -> IO[bytes]:
        try:
            return self._path(key).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise KeyError(key) from None

    def _objects(self, prefix: str) -> list[ObjectInfo]:
        found = []
        for path in self._path(prefix.rstrip("/")).rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError):  # deleted meanwhile, or a folder
                with path.open("rb") as file:
                    digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
                key = path.relative_to(self._root).as_posix()
                found.append(ObjectInfo(key, digest, content_type(key), size))
        return sorted(found, key=lambda info: info.key)

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def _move(self, prefix: str, target: str) -> bool:
        to = self._path(target.rstrip("/"))
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._path(prefix.rstrip("/")).rename(to)
        except FileNotFoundError:
            return False
        return True

    def _delete_prefix(self, prefix: str) -> int:
        path = self._path(prefix.rstrip("/"))
        number = sum(1 for below in path.rglob("*") if below.is_file())
        while path.exists():
            with suppress(FileNotFoundError):  # deleted by another process at the same time
                shutil.rmtree(path)
        return number

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)


def _remove_empty(folder: Path) -> None:
    """Removes folders whose objects were deleted; OSError if an object is left."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        path.rmdir()
