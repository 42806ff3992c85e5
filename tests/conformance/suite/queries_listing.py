"""Lists of jobs: every filter, page by page."""

import random
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dutiful.core.errors import UsageError
from dutiful.core.ids import from_parts, time_of
from dutiful.core.job import JobRecord, NewJob
from dutiful.core.outcome import Cancelled, Failed, Outcome, Partial, Snoozed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.queries import JobFilter, JobPage
from dutiful.stores import listing
from suite.builders import (
    KIND,
    OOPS,
    T0,
    at,
    change,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    new_job,
    progress,
    report_all,
    settle,
    start_one,
)

QUEUES = ("default", "mail", "ma%l")
KINDS = (KIND, "send", "Send")
ERRORS = (OOPS, OOPS | {"class": "transient"}, OOPS | {"class": "rate_limited"})
OUTCOMES: tuple[Outcome, ...] = (
    *(Failed(error, final=True) for error in ERRORS),
    *(Partial(None, (error, OOPS | {"class": "transient"})) for error in ERRORS),
    Cancelled("no use"),
)
AGAIN = [{**error, "message": "No answer here"} for error in ERRORS]
MANY = 6_000  # more than one page searches
_MS = int(T0.timestamp() * 1000)


def id_at(second: int, number: int = 0) -> UUID:
    return from_parts(_MS + 1000 * second, number.to_bytes(10, "big"))


async def jobs_of_all_sorts(store: Store, choose: random.Random, count: int) -> list[JobRecord]:
    """Jobs in every state, one a second, each with some of the values that lists are filtered by."""
    jobs: list[NewJob] = []
    for number in range(count):
        job_id = id_at(number)
        fate = choose.choice(["wait", "wait", "later", "need", "run"])
        tenant = choose.choice([None, "acme", "acme2", "a%"])
        earlier = [job.id for job in jobs if job.tenant == tenant]
        jobs.append(
            new_job(
                id=job_id,
                kind=choose.choice(KINDS),
                queue=choose.choice(QUEUES),
                tenant=tenant,
                correlation_id=None if number == 20 else choose.choice([None, "order-7", "order_7"]),
                payload=choose.choice(['{"to": "Ada"}', '{"to": "50% off_now"}', '{"to": "500 of now"}', "{}"]),
                subject=choose.choice([None, '{"order": 7, "paid": true}', '{"order": 1, "paid": false}']),
                run_at=at(10**6) if fate == "later" else None,
                depends_on=tuple(earlier[:1]) if fate == "need" else (),
                priority=0 if fate == "run" else 100,
            )
        )
    await enqueue(store, *jobs)
    claims = await claim(store, levels=[QueueLevel(queue, 0) for queue in QUEUES], kinds=KINDS, limit=count)
    claims += await claim(store, levels=[QueueLevel(queue, 100) for queue in QUEUES], kinds=KINDS, limit=count // 4)
    await report_all(store, *(progress(claimed, phase=choose.choice(["upload", "resize"])) for claimed in claims[::2]))
    for claimed in claims:
        match choose.choice(["run", "done", "other", "other", "again"]):
            case "again":
                await store.claims.settle([change(claimed, Failed(choose.choice(AGAIN)))], now=T0)
            case "done":
                await complete(store, claimed)
            case "other":
                await store.claims.settle([change(claimed, choose.choice(OUTCOMES))], now=T0)
    records = [await store.queries.job(job.id) for job in jobs]
    return [record for record in reversed(records) if record is not None]


CHOICES: dict[str, list[Any]] = {
    "state": list(State),
    "kind": [*KINDS, "unknown"],
    "kinds": [KINDS[1:], KINDS, ("unknown", KIND), ()],
    "queue": [*QUEUES, "unknown"],
    "tenant": ["acme", "acme2", "a%", "unknown"],
    "correlation_id": ["order-7", "order_7", "unknown", str(id_at(20)), str(id_at(21)), str(id_at(21)).upper()],
    "subject": [{"order": 7}, {"order": 1, "paid": False}, {"order": True}, {"paid": 1}, {"none": None}, {}],
    "error_class": ["transient", "rate_limited", "unknown"],
    "phase": ["upload", "resize", "unknown"],
    "text": ["ADA", "0% off_", "0%off", "_", "order", "OOPS", "500 of", "no answer here"],
    "since": [at(30), at(80.0005), at(10**7), datetime(1960, 1, 1, tzinfo=T0.tzinfo)],
    "until": [at(90), at(40.0005), at(10**7), datetime(1960, 1, 1, tzinfo=T0.tzinfo)],
}


def matches(job: JobRecord, last: dict[str, Any], wanted: JobFilter) -> bool:
    """The meaning of a filter, as plain Python; `last` is the error of a job that waits for another attempt."""
    subject, error = job.subject or {}, (job.errors or [last])[0]
    texts = [msgspec.json.encode(value).decode().lower() for value in (job.payload, job.subject, job.errors, last)]
    return all(
        (
            wanted.state in (None, job.state),
            wanted.kind in (None, job.kind),
            wanted.kinds is None or job.kind in wanted.kinds,
            wanted.queue in (None, job.queue),
            wanted.tenant in (None, job.tenant),
            wanted.correlation_id in (None, job.correlation_id),
            all(repr(subject.get(name, "none")) == repr(value) for name, value in (wanted.subject or {}).items()),
            wanted.error_class in (None, error.get("class", "")),
            wanted.phase in (None, job.progress.phase if job.progress else ""),
            wanted.text is None or any(wanted.text.lower() in text for text in texts),
            wanted.since is None or time_of(job.id) >= wanted.since,
            wanted.until is None or time_of(job.id) < wanted.until,
        )
    )


async def pages(store: Store, wanted: JobFilter) -> AsyncIterator[JobPage]:
    """Every page of a list, each after the one before it."""
    while True:
        page = await store.queries.jobs(wanted)
        yield page
        if page.next is None:
            return
        wanted = msgspec.structs.replace(wanted, before=page.next)


async def listed(store: Store, **wanted: Any) -> list[UUID]:
    return [job.id async for page in pages(store, JobFilter(**wanted)) for job in page]


@pytest.mark.req("W51", "W67")
class QueryListingSuite:
    async def test_every_filter_alone_and_with_another_lists_the_right_jobs(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "FIRST", 10)  # so that so few jobs need several steps
        choose = random.Random(7)
        jobs = await jobs_of_all_sorts(store, choose, 120)
        assert {job.state for job in jobs} == set(State)
        last: dict[UUID, dict[str, Any]] = {}
        for job in jobs:
            for attempt in () if job.state.final else await store.queries.attempts(job.id):
                last[job.id] = attempt.error or {}
        assert last
        filters = [{"state": State.SCHEDULED, "error_class": name} for name in CHOICES["error_class"]]
        filters += [{name: value} for name, values in CHOICES.items() for value in values]
        for one, other in combinations(CHOICES, 2):
            filters += [{one: choose.choice(CHOICES[one]), other: choose.choice(CHOICES[other])} for _ in range(3)]

        for fields in ({}, *filters):
            if "since" in fields and "until" in fields and fields["since"] > fields["until"]:
                continue  # refused
            expected = [job for job in jobs if matches(job, last.get(job.id, {}), JobFilter(**fields))]
            found = [
                job async for page in pages(store, JobFilter(**fields, limit=choose.randint(3, 60))) for job in page
            ]
            assert found == expected, fields

    async def test_a_live_job_has_the_error_of_its_last_attempt(self, store: Store) -> None:
        claimed = await start_one(store)
        job_id, errors = claimed.job_id, [OOPS | {"message": text, "class": "transient"} for text in ("one", "two")]
        seen: list[JobRecord] = []

        async def look() -> None:
            record = await store.queries.job(job_id)
            page = await store.queries.jobs(JobFilter(limit=1))
            assert page.jobs == [record]
            seen.append(page[0])

        await look()
        for number, error in enumerate(errors):
            await settle(store, claimed, Failed(error), now=at(100 * number))
            await look()
            await store.control.run_now(job_id, now=at(100 * number))
            claimed = await claim_one(store, now=at(100 * number))
            await look()
        rejected = OOPS | {"message": "it is open", "breaker": "shop"}
        await settle(store, claimed, Snoozed(timedelta(0), rejected), now=at(200))
        await look()
        await store.control.run_now(job_id, now=at(200))
        await complete(store, await claim_one(store, now=at(300)), now=at(300))
        await look()

        assert [(job.state, job.last_error, job.error) for job in seen] == [
            (State.RUNNING, None, None),
            (State.SCHEDULED, errors[0], errors[0]),
            (State.RUNNING, errors[0], errors[0]),
            (State.SCHEDULED, errors[1], errors[1]),
            (State.RUNNING, errors[1], errors[1]),
            (State.BLOCKED, rejected, rejected),
            (State.COMPLETED, None, None),
        ]

    async def test_an_error_class_finds_jobs_that_wait_and_jobs_that_ended(self, store: Store) -> None:
        error = OOPS | {"class": "transient"}
        waits, failed, mended, other = [await start_one(store) for _ in range(4)]
        await store.claims.settle([change(one, Failed(error)) for one in (waits, failed, mended)], now=T0)
        await settle(store, other, Failed(ERRORS[2]))
        for one in (failed, mended):
            await store.control.run_now(one.job_id, now=at(1))
        again = {one.job_id: one for one in await claim(store, now=at(1))}
        await settle(store, again[failed.job_id], Failed(error, final=True), now=at(1))
        await complete(store, again[mended.job_id], now=at(1))

        assert await listed(store, error_class="transient") == [failed.job_id, waits.job_id]
        assert await listed(store, error_class="transient", limit=1) == [failed.job_id, waits.job_id]
        assert await listed(store, error_class="transient", state=State.SCHEDULED) == [waits.job_id]
        assert await listed(store, error_class="transient", state=State.FAILED) == [failed.job_id]
        assert await listed(store, error_class="transient", state=State.COMPLETED) == []

    async def test_an_error_class_is_not_searched_among_jobs_that_never_ran(self, store: Store) -> None:
        claimed = await start_one(store, id=id_at(0))
        await settle(store, claimed, Failed(OOPS | {"class": "transient"}))
        later = [new_job(id=id_at(number), run_at=at(10**6)) for number in range(1, MANY)]
        await enqueue(store, *later, new_job(id=id_at(MANY)))

        for state in (None, State.SCHEDULED):
            page = await store.queries.jobs(JobFilter(error_class="transient", state=state))
            assert ([job.id for job in page], page.next) == ([claimed.job_id], None)

    async def test_paging_neither_skips_nor_repeats_while_jobs_come_and_go(self, store: Store) -> None:
        old = [await finish_one(store) for _ in range(4)]
        kept = [await finish_one(store, now=at(60), queue=queue) for queue in ("default", "mail") * 4]
        wanted = JobFilter(state=State.COMPLETED, kind=KIND, limit=3)

        first = await store.queries.jobs(wanted)
        await finish_one(store, now=at(60))
        await store.retention.delete(timedelta(seconds=30), 100, None, now=at(61))
        rest = [
            job.id async for page in pages(store, msgspec.structs.replace(wanted, before=first.next)) for job in page
        ]

        assert [job.id for job in first] + rest == kept[::-1]
        assert await store.queries.job(old[0]) is None

    async def test_a_full_last_page_has_no_next(self, store: Store) -> None:
        made = [await enqueue_one(store) for _ in range(4)]

        assert (await store.queries.jobs(JobFilter(limit=4))).next is None
        assert (await store.queries.jobs(JobFilter(limit=3))).next == made[1]
        assert (await store.queries.jobs(JobFilter(limit=4, kind=KIND, queue="default"))).next is None

    async def test_a_search_is_bounded_and_returns_how_far_it_came(self, store: Store) -> None:
        rare = new_job(id=id_at(0), subject='{"order": 1}', payload='{"to": "Ada"}', tenant="acme")
        await enqueue(store, rare, *(new_job(id=id_at(number)) for number in range(1, MANY)))

        for fields in ({"subject": {"order": 1}}, {"text": "ada"}, {"text": "ada", "state": State.READY}):
            first, second = [page async for page in pages(store, JobFilter(**fields))]
            assert (first.jobs, [job.id for job in second]) == ([], [rare.id])
            assert first.next is not None
            assert first.searched_since == time_of(first.next) > T0
            assert (second.next, second.searched_since) == (None, None)
        recent = await store.queries.jobs(JobFilter(text="ada", since=at(MANY - 100)))
        assert (recent.jobs, recent.next, recent.searched_since) == ([], None, at(MANY - 100))

    async def test_the_narrower_of_two_filters_is_searched(self, store: Store) -> None:
        rare = new_job(id=id_at(0), kind="rare", queue="mail", tenant="acme")
        await enqueue(store, rare, *(new_job(id=id_at(n), tenant=f"t{n % 2}") for n in range(1, MANY)))

        narrow: list[dict[str, Any]] = [{"kind": "rare"}, {"queue": "mail"}, {"tenant": "acme"}]
        for fields in narrow:
            page = await store.queries.jobs(JobFilter(state=State.READY, **fields))
            assert ([job.id for job in page], page.next) == ([rare.id], None)
        page = await store.queries.jobs(JobFilter(kind=KIND, tenant="acme"))
        assert (page.jobs, page.next) == ([], None)

    async def test_a_searched_text_may_contain_quotes_and_newlines(self, store: Store) -> None:
        payload = msgspec.json.encode({"said": 'He said "no\\way"\nand Größe'}).decode()
        job_id = await enqueue_one(store, payload=payload)
        await enqueue_one(store, payload='{"said": "no"}')

        for text in ('"NO\\w', '"\nand', "Größe"):
            assert await listed(store, text=text) == [job_id]

    async def test_a_list_of_no_jobs_is_refused(self, store: Store) -> None:
        with pytest.raises(UsageError, match="limit 0"):
            await store.queries.jobs(JobFilter(limit=0))
        with pytest.raises(UsageError, match="since is later than until"):
            await store.queries.jobs(JobFilter(since=at(1), until=T0))

    async def test_a_tenant_counts_its_own_only(self, store: Store) -> None:
        for tenant in ("acme", "rival", None):
            await finish_one(store, tenant=tenant)
            await finish_one(store, Failed(OOPS, final=True), tenant=tenant)
            running = await start_one(store, tenant=tenant)
            await enqueue_one(store, tenant=tenant, queue="mail", now=at(9 if tenant == "acme" else 5))
            await enqueue_one(store, tenant=tenant, run_at=at(60))
            await enqueue_one(store, tenant=tenant, depends_on=(running.job_id,))
        await enqueue_one(store, tenant="rival", queue="theirs", now=at(1))

        queues = {record.queue: record for record in await store.queries.queues(tenant="acme")}
        stats = await store.queries.stats(timedelta(hours=1), tenant="acme", now=at(60))

        assert queues.keys() == {"default", "mail"}
        assert [queues["default"].scheduled, queues["default"].blocked, queues["default"].running] == [1, 1, 1]
        assert (queues["mail"].ready, queues["mail"].oldest_ready_at) == (1, at(9))
        assert stats.live == {"scheduled": 1, "ready": 1, "blocked": 1, "running": 1}
        assert stats.finished == {"completed": 1, "failed": 1}
        assert (stats.oldest_ready_at, stats.dead_letters) == (at(9), 1)
        assert (await store.queries.stats(timedelta(hours=1), now=at(60))).live["ready"] == 4
