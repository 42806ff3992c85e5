"""Whatever a handler returns or raises, its neighbours in the batch are not harmed and its own error is clear."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from running_workers import final, working

from dutiful import Dutiful, JobRecord, Retry, State

MEGABYTE = 1_000_000


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I will not say")


class Lying(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def nested() -> list[Any]:
    inner: list[Any] = []
    for _ in range(100_000):
        inner = [inner]
    return inner


def circular() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


def deep() -> int:
    return deep() + 1


def throw(error: BaseException) -> Callable[[], Any]:
    def now() -> Any:
        raise error

    return now


@dataclass
class Bad:
    """What the handler does, and what its error must say."""

    act: Callable[[], Any]
    says: str


RESULTS = {
    "a NUL": Bad(lambda: "a\0b", "NUL"),
    "a NUL in a key": Bad(lambda: {"a\0b": 1}, "NUL"),
    "a lone surrogate": Bad(lambda: {"deep": ["\ud800"]}, "lone surrogate"),
    "a lone surrogate in a key": Bad(lambda: {"\udfff": 1}, "lone surrogate"),
    "not a number": Bad(lambda: [1.0, math.nan], "nan, which JSON does not have"),
    "infinity": Bad(lambda: {"far": math.inf}, "inf, which JSON does not have"),
    "20 MB": Bad(lambda: "x" * 20 * MEGABYTE, "more than the limit of 1,048,576"),
    "an object": Bad(object, "cannot be written as JSON"),
    "a lambda inside": Bad(lambda: {"f": lambda: 1}, "cannot be written as JSON"),
    "a number too long to write": Bad(lambda: 10**5_000, "cannot be written as JSON"),
    "a deep list": Bad(nested, "nested too deeply"),
    "a list of itself": Bad(circular, "nested too deeply"),
}
ERRORS = {
    "a NUL in the message": Bad(throw(ValueError("a\0b")), "ValueError: a\N{REPLACEMENT CHARACTER}b"),
    "a lone surrogate in the message": Bad(throw(ValueError("a\ud800b")), "ValueError: a?b"),
    "20 MB of message": Bad(throw(ValueError("x" * 20 * MEGABYTE)), "20,000,000 characters in all"),
    "a failing __str__": Bad(throw(Unspeakable()), "Unspeakable: (its message could not be read: RuntimeError)"),
    "a __str__ that gives no text": Bad(throw(Lying()), "Lying: (its message could not be read: TypeError)"),
    "endless recursion": Bad(deep, "RecursionError: maximum recursion depth exceeded"),
    "an exit": Bad(throw(SystemExit(3)), "SystemExit: 3"),
    "a cancellation of its own": Bad(throw(asyncio.CancelledError("inner")), "CancelledError: inner"),
    "the end of an iterator": Bad(throw(StopIteration("over")), "RuntimeError: "),
    "a group": Bad(throw(ExceptionGroup("two", [ValueError("a"), KeyError("b")])), "ExceptionGroup: two"),
}
ALL = {**RESULTS, **ERRORS}


def error_text(record: JobRecord) -> str:
    assert record.errors is not None
    return f"{record.errors[0]['type']}: {record.errors[0]['message']}"


@pytest.mark.parametrize("mode", ["loop", "thread"])
async def test_a_bad_outcome_among_good_ones_fails_alone(app: Dutiful, mode: str) -> None:
    @app.job(name="loop", retry=Retry(max_attempts=1))
    async def on_loop(what: str) -> Any:
        return ALL[what].act() if what in ALL else what

    @app.job(name="thread", retry=Retry(max_attempts=1))
    def in_thread(what: str) -> Any:
        return ALL[what].act() if what in ALL else what

    kind = app.kind(mode)
    whats = [f"good {n}" for n in range(199 - len(ALL))]
    for n, bad in enumerate(ALL):
        whats.insert(n * len(whats) // len(ALL), bad)
    jobs = await kind.enqueue_many([{"what": what} for what in whats])
    async with working(app):
        for what, job in zip(whats, jobs, strict=True):
            record = await final(app, job)
            if what in ALL:
                assert (record.state, record.attempt) == (State.FAILED, 1), what
                assert ALL[what].says in error_text(record), what
                assert len(error_text(record)) < 3_000, what
            else:
                assert (record.state, record.result) == (State.COMPLETED, what)


async def test_a_result_of_a_hundred_megabytes_is_refused_in_words(app: Dutiful) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def huge() -> str:
        return "x" * 100 * MEGABYTE

    @app.job
    async def small() -> str:
        return "fine"

    job = await huge.enqueue()
    jobs = await small.enqueue_many([{}] * 199)
    async with working(app):
        record = await final(app, job)
        assert record.state is State.FAILED
        assert "the result has 100,000,002 bytes" in error_text(record) and "pass a reference" in error_text(record)
        assert {await job.result("20s") for job in jobs} == {"fine"}


async def test_a_result_that_only_the_database_refuses_fails_alone(app: Dutiful) -> None:
    """Past the worker's own checks, the store takes the batch apart until the culprit is found."""

    @app.job
    async def say(what: str) -> Any:
        return msgspec.Raw(b"{broken") if what == "bad" else what

    jobs = await say.enqueue_many([{"what": f"good {n}"} for n in range(100)] + [{"what": "bad"}])
    async with working(app):
        record = await final(app, jobs[-1])
        assert record.state is State.FAILED
        assert "ResultRefused: the job's result could not be stored" in error_text(record)
        assert [await job.result("20s") for job in jobs[:-1]] == [f"good {n}" for n in range(100)]


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_handler_that_ignores_a_stop_leaves_its_slot_sound(app: Dutiful) -> None:
    app.configure(lanes="one=1:*")

    @app.job(timeout="50ms")
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done all the same"

    @app.job(retry=Retry(max_attempts=1))
    async def cancels_within() -> None:
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel("inner")
        await inner

    async with working(app):
        first = await stubborn.enqueue()
        second = await cancels_within.enqueue()
        assert await first.result("20s") == "done all the same"
        assert error_text(await final(app, second)).startswith("CancelledError")
