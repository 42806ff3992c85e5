"""What a dead letter keeps of its permanently failed job, and how it is found."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dutiful.core.job import NewJob, Unique
from dutiful.core.outcome import Failed
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.dead_letters import DeadLetter, DeadLetterFilter, LetterCursor, Review
from suite.builders import (
    ADA,
    BACKOFF,
    OOPS,
    T0,
    at,
    claim_one,
    crash,
    finish_one,
    new_id,
    new_job,
    settle,
    start_one,
)
from suite.retention import LATER, retain_all

TIMED_OUT = {
    "type": "TimeoutError",
    "message": "no answer from 10.0.0.7",
    "traceback": "…",
    "class": "transient",
    "fingerprint": "7d1e",
}
NO_SUCH = {
    "type": "LookupError",
    "message": "No such MESSAGE: 100%_sure",
    "traceback": "…",
    "class": "non_retryable",
    "fingerprint": "c0de",
}
ODD = (
    '{"": [[], {}, null, true], "float": 0.1, "large": 12345678901234567890123, "1": {"quote": "\\" \\\\ \\n/", '
    '"ключ": "\\u00e4\\ud83d\\ude00"}, "negative": -0.5}'
)


async def fail_one(store: Store, error: dict[str, Any] = OOPS, *, now: datetime = T0, **fields: Any) -> DeadLetter:
    """The dead letter of a new job that failed for good."""
    return await the_letter(store, await finish_one(store, Failed(error, final=True), now=now, **fields))


async def the_letter(store: Store, job_id: UUID) -> DeadLetter:
    letter = await store.dead_letters.find(job_id)
    assert letter is not None
    return letter


async def found(store: Store, **fields: Any) -> list[UUID]:
    """The ids of those that a filter finds."""
    wanted = DeadLetterFilter(**fields)
    letters = await store.dead_letters.search(wanted, limit=100)
    assert await store.dead_letters.count(wanted) == len(letters)
    return [letter.id for letter in letters]


def another(letter: DeadLetter, **fields: Any) -> NewJob:
    """A job that reprocesses a dead letter, in a queue of its own."""
    payload = msgspec.json.encode(letter.payload).decode()
    return new_job(**{"kind": letter.kind, "queue": "again", "payload": payload, "retry_of": letter.id} | fields)


def act_on(letter: DeadLetter, act: ReviewAct, **fields: Any) -> Review:
    if act is ReviewAct.REPROCESS:
        fields = {"job": another(letter)} | fields
    usual: dict[str, Any] = {"id": letter.id, "act": act, "by": "ada"}
    return Review(**usual | fields)


async def applied(store: Store, *reviews: Review, now: datetime = T0) -> None:
    """Reviews that must all be applied."""
    assert all(answer.applied for answer in await store.dead_letters.review(reviews, now=now))


class DeadLetterSuite:
    async def test_the_states_of_several_are_found_by_their_jobs(self, store: Store) -> None:
        waiting, closed = await fail_one(store), await fail_one(store)
        await applied(store, act_on(closed, ReviewAct.DISCARD))
        completed = await finish_one(store)

        states = await store.dead_letters.states([closed.id, completed, new_id(), waiting.id])

        assert states == {waiting.id: ReviewState.PENDING_REVIEW, closed.id: ReviewState.DISCARDED}
        assert await store.dead_letters.states([]) == {}

    async def test_several_are_found_by_their_jobs(self, store: Store) -> None:
        failed = [await finish_one(store, Failed(OOPS, final=True), now=at(n)) for n in range(3)]
        completed = await finish_one(store)

        found = await store.dead_letters.find_all([completed, *failed[1:], new_job().id])

        assert found == [await store.dead_letters.find(job_id) for job_id in reversed(failed[1:])]

    async def test_a_list_without_details_has_all_but_what_may_be_large(self, store: Store) -> None:
        claimed = await start_one(store, payload='{"n": 1}', tenant="acme")
        await settle(store, claimed, Failed(NO_SUCH, final=True))
        whole = await store.dead_letters.search(DeadLetterFilter())

        found = await store.dead_letters.search(DeadLetterFilter(tenant="acme"), details=False)

        left_out: dict[str, Any] = {"payload": None, "job": {}, "errors": [], "history": []}
        assert found == [msgspec.structs.replace(letter, **left_out) for letter in whole]

    @pytest.mark.req("W34", "W35", "W36", "W37", "W38", "W39")
    async def test_a_job_that_fails_for_good_is_kept_whole(self, store: Store) -> None:
        first = await start_one(
            store, payload='{"n": [1, 2]}', queue="slow", priority=7, max_attempts=2, tenant="acme", created_by="web",
            correlation_id="order-17", subject='{"build": 5}', options='{"unique": "fetch-17", "timeout": 60}',
            unique=Unique("fetch-17"),
        )  # fmt: skip
        await settle(store, first, Failed(TIMED_OUT), now=at(1))
        assert await store.dead_letters.find(first.job_id) is None
        await store.promotion.promote(10, now=at(60))
        last = await claim_one(store, levels=[QueueLevel("slow", 7)], now=at(60))
        await settle(store, last, Failed(NO_SUCH), max_attempts=2, now=at(61))

        letter = await the_letter(store, first.job_id)

        assert (letter.id, letter.status, letter.died_at) == (first.job_id, ReviewState.PENDING_REVIEW, at(61))
        assert (letter.kind, letter.queue, letter.tenant) == (first.kind, "slow", "acme")
        assert (letter.correlation_id, letter.unique_key, letter.created_at) == ("order-17", "fetch-17", T0)
        assert (letter.attempt, letter.max_attempts, letter.payload) == (2, 2, {"n": [1, 2]})
        assert (letter.error_class, letter.error_type) == ("non_retryable", "LookupError")
        assert (letter.message, letter.fingerprint) == ("No such MESSAGE: 100%_sure", "c0de")
        assert letter.errors == [NO_SUCH]
        fields = ("id", "kind", "queue", "payload", "priority", "max_attempts", "tenant", "subject", "created_by")
        assert [letter.job[name] for name in fields] == [
            str(letter.id), letter.kind, "slow", {"n": [1, 2]}, 7, 2, "acme", {"build": 5}, "web"
        ]  # fmt: skip
        assert letter.job["options"] == {"unique": "fetch-17", "timeout": 60}
        assert datetime.fromisoformat(letter.job["created_at"]) == T0
        (tried,) = letter.history
        assert (tried["attempt"], tried["outcome"], tried["claim_id"]) == (1, "failed", first.claim_id)
        assert (tried["error"], UUID(tried["worker_id"])) == (TIMED_OUT, ADA)
        assert [datetime.fromisoformat(tried[name]) for name in ("claimed_at", "ended_at")] == [T0, at(1)]
        untouched = (letter.reviewed_by, letter.reviewed_at, letter.notes, letter.new_job_id, letter.resolution)
        assert untouched == (None,) * 5

    async def test_a_dead_letter_has_no_values_that_its_job_was_not_given(self, store: Store) -> None:
        letter = await fail_one(store)

        assert (letter.correlation_id, letter.tenant, letter.unique_key) == (str(letter.id), None, None)
        assert (letter.error_class, letter.fingerprint, letter.history) == (None, None, [])

    async def test_a_job_that_was_lost_too_often_leaves_a_dead_letter(self, store: Store) -> None:
        job_id, now = (await start_one(store)).job_id, T0
        for _ in range(2):
            now = await crash(store, now=now)
            await claim_one(store, limit=0, suspects=1, now=now)
        now = await crash(store, now=now)

        letter = await the_letter(store, job_id)

        assert (letter.error_type, letter.died_at) == ("WorkerLost", now)
        assert [tried["outcome"] for tried in letter.history] == ["lost", "lost"]

    async def test_a_history_has_every_attempt_in_order(self, store: Store) -> None:
        claimed = await start_one(store)
        for n in range(1, 4):
            now = T0 + n * BACKOFF
            await settle(store, claimed, Failed(TIMED_OUT | {"message": f"try {n}"}), now=now - BACKOFF)
            await store.promotion.promote(10, now=now)
            claimed = await claim_one(store, now=now)
        await settle(store, claimed, Failed(NO_SUCH, final=True), now=at(60))

        letter = await the_letter(store, claimed.job_id)

        errors = [(tried["attempt"], tried["error"]["message"]) for tried in letter.history]
        assert errors == [(1, "try 1"), (2, "try 2"), (3, "try 3")]
        assert letter.attempt == 4

    async def test_a_job_that_did_not_fail_leaves_none(self, store: Store) -> None:
        job_id = await finish_one(store)

        assert await store.dead_letters.find(job_id) is None
        assert await store.dead_letters.find(new_id()) is None
        assert await found(store) == []

    async def test_odd_json_is_kept_as_given(self, store: Store) -> None:
        letter = await fail_one(store, payload=ODD, subject='{"é": [1.5]}')

        assert letter.payload == letter.job["payload"] == msgspec.json.decode(ODD)
        assert letter.job["subject"] == {"é": [1.5]}

    @pytest.mark.req("W35", "W36")
    async def test_a_dead_letter_outlives_its_job_unchanged(self, store: Store) -> None:
        letter = await fail_one(store, TIMED_OUT, payload=ODD, tenant="acme")

        await retain_all(store)

        assert await store.queries.job(letter.id) is None
        assert await the_letter(store, letter.id) == letter

    async def test_closed_dead_letters_are_deleted_when_old_and_open_ones_never(self, store: Store) -> None:
        pending, acknowledged, discarded, resolved, new = [await fail_one(store) for _ in range(5)]
        await applied(store, act_on(acknowledged, ReviewAct.ACKNOWLEDGE))
        await applied(store, act_on(discarded, ReviewAct.DISCARD), act_on(resolved, ReviewAct.RESOLVE))
        await applied(store, act_on(new, ReviewAct.DISCARD), now=LATER)

        # A failed job always has its dead letter, so these are deleted after their jobs.
        await store.retention.delete_leftovers(timedelta(days=7), 10, now=LATER)
        assert len(await found(store)) == 5
        await retain_all(store)
        await store.retention.delete_leftovers(timedelta(days=7), 10, now=LATER)

        assert {*await found(store)} == {pending.id, acknowledged.id, new.id}
        assert await store.queries.check_places() == []

    async def test_the_newest_come_first_and_pages_have_neither_gap_nor_repeat(self, store: Store) -> None:
        letters = [await fail_one(store, now=at(n // 3)) for n in range(8)]
        expected = [one.id for one in sorted(letters, key=lambda one: (one.died_at, one.id), reverse=True)]

        after: LetterCursor | None = None
        pages: list[list[UUID]] = []
        while page := await store.dead_letters.search(DeadLetterFilter(), after=after, limit=3):
            pages.append([one.id for one in page])
            after = page[-1].cursor
            await fail_one(store, now=at(99))  # one that is added meanwhile is on no later page

        assert [len(page) for page in pages] == [3, 3, 2]
        assert [id_ for page in pages for id_ in page] == expected

    async def test_a_page_begins_after_its_cursor_with_any_filter(self, store: Store) -> None:
        letters = [await fail_one(store, TIMED_OUT, tenant="acme", now=at(1)) for _ in range(4)]
        cursor = sorted(letters, key=lambda one: one.id)[2].cursor

        for fields in ({}, {"status": [ReviewState.PENDING_REVIEW]}, {"tenant": "acme"}, {"fingerprint": "7d1e"}):
            wanted = DeadLetterFilter(**fields)
            assert [one.id for one in await store.dead_letters.search(wanted, after=cursor)] == [
                letters[1].id,
                letters[0].id,
            ]

    async def test_every_filter_finds_what_fits_and_nothing_else(self, store: Store) -> None:
        here = await fail_one(store, TIMED_OUT, tenant="acme", correlation_id="order-17", now=at(10))
        there = await fail_one(store, NO_SUCH, kind="other", queue="slow", tenant="globex", now=at(20))
        plain = await fail_one(store, now=at(30))
        await applied(store, act_on(there, ReviewAct.ACKNOWLEDGE))

        pending, acknowledged, discarded = (
            ReviewState.PENDING_REVIEW,
            ReviewState.ACKNOWLEDGED,
            ReviewState.DISCARDED,
        )
        for fields, expected in (
            ({}, [plain, there, here]),
            ({"status": [pending]}, [plain, here]),
            ({"status": [pending, acknowledged]}, [plain, there, here]),
            ({"status": [discarded]}, []),
            ({"kinds": ["greet"]}, [plain, here]),
            ({"kinds": ["greet", "other"]}, [plain, there, here]),
            ({"kinds": ["unknown"]}, []),
            ({"queue": "slow"}, [there]),
            ({"tenant": "acme"}, [here]),
            ({"tenant": "umbrella"}, []),
            ({"correlation_id": "order-17"}, [here]),
            ({"correlation_id": str(plain.id)}, [plain]),
            ({"error_class": "transient"}, [here]),
            ({"error_type": "LookupError"}, [there]),
            ({"fingerprint": "c0de"}, [there]),
            ({"text": "MESSAGE: 100%_S"}, [there]),
            ({"text": "no "}, [there, here]),
            ({"text": "100__sure"}, []),
            ({"text": "%"}, [there]),
            ({"since": at(20)}, [plain, there]),
            ({"until": at(20)}, [here]),
            ({"since": at(20), "until": at(20)}, []),
            ({"tenant": "acme", "kinds": ["greet"], "status": [pending], "text": "answer"}, [here]),
            ({"tenant": "acme", "fingerprint": "c0de"}, []),
        ):
            assert await found(store, **fields) == [letter.id for letter in expected], fields

    async def test_dead_letters_are_counted_by_status_kind_and_class(self, store: Store) -> None:
        empty = await store.dead_letters.counts(DeadLetterFilter())
        assert (empty.total, empty.by_status, empty.oldest_open_at) == (0, {}, None)
        gone = await fail_one(store, TIMED_OUT, tenant="acme", now=at(1))
        await fail_one(store, TIMED_OUT, tenant="acme", now=at(2))
        await fail_one(store, kind="other", tenant="globex", now=at(3))
        await applied(store, act_on(gone, ReviewAct.DISCARD))

        counts = await store.dead_letters.counts(DeadLetterFilter())
        theirs = await store.dead_letters.counts(DeadLetterFilter(tenant="globex"))

        assert (counts.total, counts.oldest_open_at) == (3, at(2))
        assert counts.by_status == {"pending_review": 2, "discarded": 1}
        assert counts.by_kind == {"greet": 2, "other": 1}
        assert counts.by_class == {"transient": 2, "": 1}
        assert (theirs.total, theirs.by_kind, theirs.oldest_open_at) == (1, {"other": 1}, at(3))

    async def test_equal_errors_are_one_group_the_largest_first(self, store: Store) -> None:
        await fail_one(store, NO_SUCH, now=at(9))
        old = await fail_one(store, TIMED_OUT, now=at(1))
        new = await fail_one(store, TIMED_OUT | {"message": "no answer from 10.0.0.9"}, tenant="acme", now=at(5))
        await fail_one(store, now=at(7))
        await fail_one(store, kind="other", now=at(8))

        groups = await store.dead_letters.groups(DeadLetterFilter())

        alike = groups[0]
        assert (alike.fingerprint, alike.kind, alike.count) == ("7d1e", "greet", 2)
        assert (alike.error_class, alike.error_type) == ("transient", "TimeoutError")
        assert (alike.message, alike.newest_id) == ("no answer from 10.0.0.9", new.id)
        assert (alike.first_at, alike.last_at) == (old.died_at, new.died_at)
        rest = [(group.fingerprint, group.kind, group.error_type, group.count) for group in groups[1:]]
        assert rest == [
            ("c0de", "greet", "LookupError", 1),
            (None, "other", "ValueError", 1),
            (None, "greet", "ValueError", 1),
        ]
        assert await store.dead_letters.groups(DeadLetterFilter(), limit=1) == [alike]
        (theirs,) = await store.dead_letters.groups(DeadLetterFilter(tenant="acme"))
        assert (theirs.count, theirs.newest_id) == (1, new.id)
