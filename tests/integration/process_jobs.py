"""Kinds of each mode that do what their payload says; at module level, where a process finds them."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from dutiful import Cancel, Dutiful, Fail, Fixed, Retry, RetryAfter, Snooze

app = Dutiful()
MODES = ["loop", "thread", "process"]


class Tired(Exception):
    """Retried after a day."""


class Broken(Exception):
    """Never retried."""


class Limited(RetryAfter):
    """Has no delay, because it does not call its base."""

    def __init__(self, response: str) -> None:
        self.response = response


class Unwilling(Cancel):
    def __init__(self) -> None:
        self.reason = self  # type: ignore[assignment]

    def __str__(self) -> str:
        raise RuntimeError("no")


class Dozing(Snooze):
    def __init__(self) -> None:
        self.delay = "a while"  # type: ignore[assignment]


POLICY = Retry(max_attempts=3, backoff=Fixed("1h"), per_error={Tired: Fixed("1d"), Broken: None})


@app.job(name="loop", retry=POLICY)
async def on_loop(what: str) -> Any:
    return behave(what)


@app.job(name="thread", retry=POLICY)
def in_thread(what: str) -> Any:
    return behave(what)


@app.job(name="process", process=True, retry=POLICY)
def in_process(what: str) -> Any:
    return behave(what)


def behave(what: str) -> Any:
    verb, _, rest = what.partition(" ")
    match verb:
        case "return":
            return CONTROLS[rest]
        case "raise":
            raise CONTROLS[rest]
        case "die":
            os._exit(3)
    return f"{verb} {rest}"


CONTROLS: dict[str, Exception] = {
    "snooze": Snooze("2h"),
    "cancel": Cancel("not wanted"),
    "fail": Fail("never works"),
    "retry after": RetryAfter("3h", "come back later"),
    "error": ValueError("no luck"),
    "tired": Tired("too tired"),
    "broken": Broken("for good"),
    "limited": Limited("429"),
    "unwilling": Unwilling(),
    "dozing": Dozing(),
}


# --- jobs that never end by themselves; they write their process id to a file


@app.job(name="hang on loop", timeout="10m")
async def hang_on_loop(pid_file: str) -> None:
    await asyncio.to_thread(Path(pid_file).write_text, "here")
    await asyncio.Event().wait()


@app.job(name="hang in thread", timeout="10m")
def hang_in_thread(pid_file: str) -> None:
    Path(pid_file).write_text("here")
    while True:
        time.sleep(0.005)


@app.job(name="hang in process", process=True, timeout="10m")
def hang_in_process(pid_file: str) -> None:
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(600)


@app.job(name="late on loop", timeout="100ms", retry=Retry(max_attempts=1))
async def late_on_loop(pid_file: str) -> None:
    await asyncio.Event().wait()


@app.job(name="late in thread", timeout="100ms", retry=Retry(max_attempts=1))
def late_in_thread(pid_file: str) -> None:
    while True:
        time.sleep(0.005)


@app.job(name="late in process", process=True, timeout="100ms", retry=Retry(max_attempts=1))
def late_in_process(pid_file: str) -> None:
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(600)


@app.job(name="takes a moment", process=True, timeout="1s", retry=Retry(max_attempts=1))
def takes_a_moment() -> int:
    time.sleep(0.3)
    return os.getpid()


@app.job(name="waits in process", process=True, timeout="10m", retry=Retry(max_attempts=1))
def waits_in_process(pid_file: str, gate: str) -> int:
    Path(pid_file).write_text(str(os.getpid()))
    while not Path(gate).exists():
        time.sleep(0.005)
    return os.getpid()


@app.job(process=True, inherit_secrets=True)
def enqueues() -> str:
    return str(on_loop.sync.enqueue("from a process").id)
