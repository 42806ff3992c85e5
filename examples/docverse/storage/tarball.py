"""Reads uploaded tarballs, and refuses those that would write elsewhere, or unpack to more than they may."""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from examples.docverse.layout import folders_of
from examples.docverse.storage.object_store import BadKey, check_key

MEBIBYTE = 1024 * 1024
# At the end of a stream, tarfile goes on reading for as long as the last header says.
EMPTY_READS = 8
LONGEST_TEXT = 64 * 1024
_TEXTS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip


class BadTarball(ValueError):
    """A tarball that is not published; the message says what to change."""


@dataclass(frozen=True)
class Limits:
    packed: int = 256 * MEBIBYTE
    unpacked: int = 1024 * MEBIBYTE
    objects: int = 20_000
    # Text packs to a tenth; what packs to a hundredth is not documentation. Small ones are let through.
    ratio: int = 100
    ratio_from: int = 8 * MEBIBYTE


LIMITS = Limits()


def unpack(file: Path, write: Callable[[str, IO[bytes]], None], limits: Limits = LIMITS) -> int:
    """Writes every file of a .tar.gz; the number of files. Refused before anything is written."""
    checked = sum(1 for _ in _files(file, limits))
    if checked == 0:
        raise BadTarball("the tarball has no file: pack the folder of your built pages")
    for name, body in _files(file, limits):
        write(name, body)
    return checked


def _files(file: Path, limits: Limits) -> Iterator[tuple[str, IO[bytes]]]:
    names: set[str] = set()
    folders: set[str] = set()
    packed = file.stat().st_size
    try:
        with gzip.open(file) as unzipped:
            counted = _Counted(unzipped, packed, limits)
            # A stream: sizes in headers are not believed, because what is read is counted.
            with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]
                for number, member in enumerate(archive, 1):
                    if number > limits.objects:
                        raise BadTarball(f"the tarball has over {limits.objects:,} files and folders: publish fewer")
                    if member.isdir():
                        _check_name(member.name.rstrip("/"), folder=True)
                        continue
                    name = _check_name(member.name)
                    if member.issym() or member.islnk():
                        raise BadTarball(f"{name!r} is a link to {member.linkname!r}: pack a copy of the file instead")
                    if member.issparse():
                        # Its holes are bytes that are never read, so nothing would count them.
                        raise BadTarball(f"{name!r} is a sparse file: pack it without `--sparse`")
                    if not member.isreg():
                        raise BadTarball(f"{name!r} is neither a file nor a folder: leave it out")
                    if name in names:
                        raise BadTarball(f"{name!r} is in the tarball twice")
                    above = folders_of(name)
                    if name in folders or not names.isdisjoint(above):
                        raise BadTarball(f"{name!r} is in the tarball as a file and as a folder")
                    names.add(name)
                    folders |= above
                    body = archive.extractfile(member)
                    assert body is not None
                    yield name, body
                # To the end, where the checksum is.
                counted.drain()
                # tarfile ends in silence at a header that it cannot read, and where a second tarball begins.
                if counted.content > archive.offset:
                    raise BadTarball("the tarball goes on after its end: pack all files at once with `tar -czf`")
    except BadTarball:
        raise
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise BadTarball(f"this is not a whole .tar.gz ({error}): pack it again with `tar -czf`") from error


def _check_name(name: str, *, folder: bool = False) -> str:
    plain = name.removeprefix("./")
    if folder and plain in ("", "."):
        return plain
    try:
        return check_key(plain)
    except BadKey as error:
        raise BadTarball(f"{name[:80]!r} in the tarball: {error}") from None


class _Header(tarfile.TarInfo):
    """Of a file, or of a text about the next one, which tarfile reads whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _TEXTS and header.size > LONGEST_TEXT:
            raise BadTarball(f"the tarball has a header of over {LONGEST_TEXT:,} bytes: pack it with plain `tar -czf`")
        return header


class _Counted:
    """Reads on until the tarball has unpacked to more than it may; behind `content` bytes there are only zeros."""

    def __init__(self, source: gzip.GzipFile, packed: int, limits: Limits) -> None:
        self.content = 0
        self._source = source
        self._read = 0
        self._empty = 0
        self._most = limits.unpacked
        self._suspect = max(limits.ratio_from, packed * limits.ratio)
        self._limits = limits

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        if found := data.rstrip(b"\0"):
            self.content = self._read + len(found)
        self._read += len(data)
        self._empty += not data
        if self._empty > EMPTY_READS:
            raise EOFError("it ends before its last file does")
        if self._read > self._suspect:
            raise BadTarball(f"the tarball unpacks to over {self._limits.ratio} times its size: it looks like a bomb")
        if self._read > self._most:
            raise BadTarball(f"the tarball unpacks to over {self._most // MEBIBYTE:,} MiB: publish less")
        return data

    def drain(self) -> None:
        while self.read(MEBIBYTE):
            pass
