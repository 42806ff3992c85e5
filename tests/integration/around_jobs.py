"""An app with a hook around attempts, at module level, where a process finds it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from dutiful import Context, Dutiful, Fail, Retry

app = Dutiful()


@app.around_attempt
def noting(ctx: Context) -> Iterator[None]:
    note(ctx, "before")
    if ctx.kind == "reports":
        ctx.progress(10)
    try:
        yield
    except Exception as error:
        note(ctx, type(error).__name__)
        raise
    finally:
        note(ctx, "after")


def note(ctx: Context, what: str) -> None:
    with Path(ctx.payload["notes"]).open("a") as file:
        file.write(f"{what} {ctx.kind} {ctx.attempt} in {os.getpid()}\n")


@app.job(process=True, retry=Retry(max_attempts=1))
def in_child(notes: str, fail: bool = False) -> int:
    if fail:
        raise Fail("no")
    return os.getpid()


@app.job(process=True, retry=Retry(max_attempts=1), timeout="300ms")
def too_long_in_child(notes: str) -> None:
    time.sleep(600)


@app.job(process=True, retry=Retry(max_attempts=1))
def reports(notes: str) -> None: ...
