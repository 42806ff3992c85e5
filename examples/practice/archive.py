"""Files that hold the only copy of something, so that they must be whole and never be written again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def written_once(file: Path) -> Iterator[Path]:
    """Where to write it: it appears whole in the end, unless another attempt was faster; then that one's stays."""
    file.parent.mkdir(exist_ok=True)
    half = file.with_name(f"{file.name}.{uuid4().hex}.part")
    try:
        yield half
        with suppress(FileExistsError):
            os.link(half, file)  # a rename would replace what is there
    finally:
        half.unlink(missing_ok=True)
