"""Calls as users write them; each comment after `E:` is what mypy must say of its line, and of no other."""

from collections.abc import Mapping
from typing import Any, assert_type

from dutiful import BatchJob, Context, Dutiful, Inject
from dutiful.kind import Handle, SyncHandle

app = Dutiful()


@app.job(queue="fast", timeout="2m")
async def send_email(to: str, template: str = "welcome") -> None: ...


@app.job
async def count(ctx: Context, words: list[str], db: Mapping[str, int] = Inject("db")) -> int:
    return len(words)


@app.job
def blocking(n: int) -> str:
    return str(n)


@app.job(process=True)
def heavy(n: int) -> dict[str, int]:
    return {"n": n}


@app.job(batch=100, linger="1s", queue="fast")
async def index(jobs: list[BatchJob[Mapping[str, int]]]) -> None:
    assert_type(jobs[0].payload, Mapping[str, int])


async def right() -> None:
    await index.enqueue(page=1)
    await send_email.enqueue("ada")
    await send_email.enqueue(to="ada", template="bye")
    await send_email.options(priority=5, delay="1h").enqueue(to="ada")
    assert_type(await count.enqueue(["a"]), Handle[int])
    assert_type(await (await count.enqueue(words=["a"])).result(), int)
    assert_type(await (await blocking.enqueue(1)).result("5s"), str)
    assert_type(await (await heavy.options(tenant="acme").enqueue(n=1)).result(), dict[str, int])
    assert_type(await count.enqueue_many([{"words": []}]), list[Handle[int]])
    assert_type(blocking.sync.enqueue(1), SyncHandle[str])
    assert_type(blocking.sync.options(priority=1).enqueue(n=1).result(), str)
    assert_type(await (await app.enqueue("send_email", {"to": "ada"})).result(), Any)


async def wrong() -> None:
    await send_email.enqueue(to=1)  # E: Argument "to" to "enqueue" of "Kind" has incompatible type "int"
    await send_email.enqueue()  # E: Missing positional argument "to"
    await send_email.enqueue("ada", cc="bob")  # E: Unexpected keyword argument "cc"
    await send_email.options(priority=5).enqueue(5)  # E: Argument 1 to "enqueue" of "Request" has incompatible type
    await count.enqueue(["a"], 5)  # E: Argument 2 to "enqueue" of "Kind" has incompatible type
    blocking.sync.enqueue("x")  # E: Argument 1 to "enqueue" of "SyncRequest" has incompatible type "str"
    app.job(linger="1s")  # E: No overload variant of "job" of "Registry" matches argument type "str"
    text: str = await (await count.enqueue([])).result()  # E: Incompatible types in assignment
    print(text)
