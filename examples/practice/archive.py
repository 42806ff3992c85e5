"""Files that hold the only copy of something: they must be complete, and are never overwritten."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def written_once(file: Path) -> Iterator[Path]:
    """Yields a temporary path; the file appears complete at the end, unless another attempt was faster."""
    file.parent.mkdir(exist_ok=True)
    half = file.with_name(f"{file.name}.{uuid4().hex}.part")
    try:
        yield half
        with suppress(FileExistsError):
            os.link(half, file)  # a rename would replace an existing file
    finally:
        half.unlink(missing_ok=True)
