"""Kinds of each mode that fail as their payload says; at module level, where a process finds them."""

from collections.abc import Callable

from dutiful import Dutiful, ErrorClass, Fail, Fixed, RateLimited, Retry, RetryAfter, Transient

app = Dutiful()
KEY = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"


class Answered(Exception):
    """An error as HTTP clients raise it."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(f"it answered {status}")
        self.status, self.headers = status, headers


class NoSuchUser(Fail): ...


class Closed(Exception):
    """An error that the policy names."""


POLICY = Retry(
    max_attempts=3,
    backoff=Fixed("1h"),
    by_class={ErrorClass.TRANSIENT: Fixed("2h"), ErrorClass.RATE_LIMITED: Fixed("3h")},
    classify={Closed: ErrorClass.NON_RETRYABLE},
)
ERRORS: dict[str, Callable[[], Exception]] = {
    "unknown": lambda: ValueError("no luck"),
    "transient": lambda: Transient("busy"),
    "timeout": TimeoutError,
    "fail": lambda: NoSuchUser("user 5"),
    "closed": Closed,
    "not found": lambda: Answered(404, {}),
    "limited": RateLimited,
    "limited for long": lambda: RateLimited(retry_after="4h"),
    "answered 429": lambda: Answered(429, {"Retry-After": "18000"}),
    "retry after": lambda: RetryAfter("6h"),
    "talkative": lambda: ValueError(f"{KEY} was refused {'x' * 5_000}"),
}


def fail(how: str) -> None:
    raise ERRORS[how]()


@app.job(name="loop", retry=POLICY)
async def on_loop(how: str) -> None:
    fail(how)


@app.job(name="thread", retry=POLICY)
def in_thread(how: str) -> None:
    fail(how)


@app.job(name="process", process=True, retry=POLICY)
def in_process(how: str) -> None:
    fail(how)
