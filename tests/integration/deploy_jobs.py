"""One app in two releases, `before` and `after`: one kind is new, one is removed, one has a new payload version."""

import asyncio
import os
from collections.abc import Iterator

from dutiful import Context, Dutiful, Inject, Rules

before, after = Dutiful(), Dutiful()
DIARY = "DEPLOY_DIARY"


def diary() -> Iterator[int]:
    """The file of both releases in which each run is one line."""
    file = os.open(os.environ[DIARY], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    yield file
    os.close(file)


async def work(ctx: Context, release: str, diary: int) -> None:
    await asyncio.sleep(0.01)
    os.write(diary, f"{ctx.job_id} {release} {ctx.kind}\n".encode())


before.resource(diary)
after.resource(diary)


@before.job(name="keep")
async def keep_before(ctx: Context, diary: int = Inject("diary")) -> None:
    await work(ctx, "before", diary)


@after.job(name="keep")
async def keep_after(ctx: Context, diary: int = Inject("diary")) -> None:
    await work(ctx, "after", diary)


@before.job(name="bill", rules=Rules(versions=["1.0"]))
async def bill_before(ctx: Context, account: int, diary: int = Inject("diary")) -> None:
    await work(ctx, "before", diary)


@after.job(name="bill", rules=Rules(versions=["1.0", "2.0"], default_version="1.0"))
async def bill_after(ctx: Context, account: int, currency: str, diary: int = Inject("diary")) -> None:
    await work(ctx, "after", diary)


@bill_after.upgrade("1.0")
def with_currency(old: dict[str, object]) -> dict[str, object]:
    return {**old, "currency": "EUR"}


@before.job
async def retired(ctx: Context, diary: int = Inject("diary")) -> None:
    await work(ctx, "before", diary)


@after.job
async def fresh(ctx: Context, diary: int = Inject("diary")) -> None:
    await work(ctx, "after", diary)


@after.job
async def tick(ctx: Context, diary: int = Inject("diary")) -> None:
    await work(ctx, "after", diary)


after.schedule(tick, every="1s")
