"""Jobs that a program claims and settles itself, without a worker."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from running_workers import eventually

from dutiful import ClaimLost, Dutiful, JobCancelled, State, StoreUnavailable, UsageError
from dutiful.client.claimed import ClaimedJob
from dutiful.core.job import JobRecord

SECRET = "whsec_" + "c2VjcmV0" * 5


async def claimed(app: Dutiful, **options: Any) -> ClaimedJob:
    job = await app.kind("work").options(**options).enqueue()
    held = await app.claim(await job.record(), "program")
    assert held is not None
    return held


async def stored(app: Dutiful, held: ClaimedJob) -> JobRecord:
    record = await app.find(held.id)
    assert record is not None
    return record


@pytest.fixture
def worked(app: Dutiful) -> Dutiful:
    app.configure(webhook_secrets=SECRET)

    @app.job
    async def work() -> None: ...

    return app


async def test_a_job_that_a_program_completes_is_posted_to_its_own_webhook(worked: Dutiful) -> None:
    held = await claimed(worked, webhook="https://example.org/hook")
    await held.complete({"n": 1})
    posts = await (await worked.operator()).jobs.posts(held.id)
    assert [(post.event, post.url) for post in posts] == [("job.completed", "https://example.org/hook")]


async def test_a_job_that_a_program_completes_without_a_webhook_is_posted_nowhere(worked: Dutiful) -> None:
    held = await claimed(worked)
    await held.complete()
    assert await (await worked.operator()).jobs.posts(held.id) == []


@pytest.mark.req("J49", "J50")
@pytest.mark.parametrize(
    "report",
    [
        lambda held: held.complete({"n": 1}),
        lambda held: held.fail("transient", "the server is busy"),
        lambda held: held.fail("non_retryable", "no such object", retry=False),
        lambda held: held.release(),
    ],
    ids=["complete", "fail", "fail for good", "release"],
)
async def test_a_cancelled_job_ends_so_whatever_its_program_reports(
    worked: Dutiful, report: Callable[[ClaimedJob], Awaitable[None]]
) -> None:
    held = await claimed(worked)
    assert await worked.cancel(held.id, "not needed any more")
    with pytest.raises(JobCancelled, match="was cancelled"):
        await report(held)
    record = await stored(worked, held)
    assert (record.state, record.result, record.attempt) == (State.CANCELLED, None, 1)
    assert record.errors is not None and record.errors[0]["message"] == "not needed any more"
    with pytest.raises(ClaimLost):
        await report(held)


async def test_an_outcome_that_is_reported_again_because_its_answer_was_lost_counts_once(worked: Dutiful) -> None:
    held = await claimed(worked)
    claims = (await worked.client()).store.claims
    complete = claims.complete

    async def answer_lost(*args: Any, **rest: Any) -> Any:
        claims.complete = complete  # type: ignore[method-assign]
        await complete(*args, **rest)
        raise StoreUnavailable("the connection was lost")

    claims.complete = answer_lost  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await held.complete({"n": 1})
    await held.complete({"n": 1})
    assert (await stored(worked, held)).state is State.COMPLETED
    assert await (await worked.operator()).jobs.attempts(held.id) == []
    with pytest.raises(ClaimLost):
        await held.fail("transient", "another outcome is no repeat")


@pytest.mark.parametrize("message", [None, 7, ValueError("busy"), b"busy"])
async def test_a_message_that_is_no_text_is_refused_and_the_claim_is_kept(worked: Dutiful, message: Any) -> None:
    held = await claimed(worked)
    with pytest.raises(UsageError, match=r"message: .* must be a text, as str\(error\)"):
        await held.fail("transient", message)
    await held.complete()
    assert (await stored(worked, held)).state is State.COMPLETED


async def test_a_result_that_is_no_json_is_refused_and_the_claim_is_kept(worked: Dutiful) -> None:
    held = await claimed(worked)
    with pytest.raises(UsageError, match="result"):
        await held.complete(object())
    await held.complete("done")
    assert await eventually(lambda: _is_completed(worked, held))


async def _is_completed(app: Dutiful, held: ClaimedJob) -> bool:
    return (await stored(app, held)).state is State.COMPLETED
