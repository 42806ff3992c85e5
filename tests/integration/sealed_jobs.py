"""Kinds whose jobs are sealed, with a word that must be found nowhere, and ways to look for it everywhere."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import apsw
import asyncpg

from dutiful import BatchJob, Cancel, Context, Dutiful, Fixed, KeyRing, Retry
from suite.encryption import WORD, dump

__all__ = ["WORD", "dump"]

OLD, NEW = {"2026-05": b"o" * 32}, {"2026-11": b"n" * 32}
AT_ONCE = Retry(max_attempts=2, backoff=Fixed("0s"))


class Refused(Exception):
    pass


@dataclass
class Word:
    text: str
    bad: bool = False


# At module level, where a process of a job finds it.
in_processes = Dutiful(encryption=KeyRing(OLD), poll="100ms")


@in_processes.job(process=True, retry=AT_ONCE)
def apart(text: str) -> str:
    if text.endswith("!"):
        raise Refused(f"no {text}")
    return text + text


def encrypted(url: str, *rings: dict[str, bytes], **settings: Any) -> Dutiful:
    """An app with one kind for each way in which a handler's words are stored."""
    keys = {name: key for ring in rings or (OLD,) for name, key in ring.items()}
    app = Dutiful(url, encryption=KeyRing(keys), poll="100ms", **settings)

    @app.job
    async def double(text: str) -> str:
        return text + text

    @app.job
    def shout(text: str) -> dict[str, str]:
        return {"loud": text.upper(), "text": text}

    @app.job(retry=AT_ONCE)
    async def refuse(text: str) -> None:
        raise Refused(f"no {text}")

    @app.job(retry=AT_ONCE)
    async def second_time(ctx: Context, text: str) -> str:
        if ctx.attempt == 1:
            raise Refused(f"not yet, {text}")
        return text

    @app.job
    async def give_up(text: str) -> None:
        raise Cancel(f"because of {text}")

    @app.job
    async def report(ctx: Context, text: str) -> None:
        async def work(name: str) -> None:
            ctx.progress(message=f"working on {name}")
            if name.endswith("2"):
                raise Refused(name)

        await ctx.each([f"{text} 1", f"{text} 2"], work)

    @app.job(retry=AT_ONCE)
    async def in_steps(ctx: Context, text: str) -> Any:
        first = await ctx.step("first", lambda given: [given, ctx.attempt], text)
        if ctx.attempt == 1:
            raise Refused(text)
        return first

    @app.job
    async def listen(ctx: Context, text: str) -> Any:
        return [text, await ctx.wait_for_event("said", "k")]

    pipe = app.pipeline("pipe", retry=AT_ONCE)

    @pipe.phase
    async def one(ctx: Context, text: str) -> str:
        ctx.progress(10, f"one of {text}")
        return text

    @pipe.phase(optional=True)
    async def bad(text: str) -> None:
        raise Refused(text)

    @pipe.phase
    async def two(ctx: Context) -> Any:
        if ctx.attempt == 1:
            raise Refused(ctx.result("one"))
        return {"one": ctx.result("one")}

    @app.job(batch=10, linger="10ms", retry=AT_ONCE)
    async def together(jobs: list[BatchJob[Word]]) -> list[Any]:
        return [Refused(f"no {job.payload.text}") if job.payload.bad else job.payload.text for job in jobs]

    @app.job
    async def commit(ctx: Context, text: str) -> None:
        async with ctx.transaction() as transaction:
            transaction.complete({"text": text})

    @app.job
    async def join(first: str, second: str) -> str:
        return f"{first} and {second}"

    return app


async def write(url: str, postgres: str, sqlite: str, *args: Any) -> None:
    """Changes rows behind the library's back."""
    if url.startswith("sqlite"):
        # Not by sqlite3, whose close would release the locks of the store's own driver in this process.
        db = apsw.Connection(url.removeprefix("sqlite:///"))
        db.set_busy_timeout(10_000)
        db.execute(sqlite, [arg.bytes if isinstance(arg, UUID) else arg for arg in args])
        db.close()
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(postgres, *args)
    finally:
        await connection.close()
