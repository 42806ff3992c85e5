"""Reviews and the audit trail as SQLite implements them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from dutiful.core.outcome import Failed
from dutiful.core.review.audit import AuditEvent, Seal, seal
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.store.audit import AuditFilter
from dutiful.store.claims import QueueLevel
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.stores.sqlite import SqliteStore, dead_letters
from old_events import any_date
from suite.audit import DAY, OLD, append, event, full_event, seal_all
from suite.builders import T0, at, claim, claim_one, complete, settle, start_one
from suite.dead_letters import TIMED_OUT, act_on, applied, fail_one, found, the_letter


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def by_hand(path: Path, *statements: str) -> None:
    db = apsw.Connection(str(path))
    try:
        for statement in statements:
            db.execute(statement)
    finally:
        db.close()


async def append_old(store: SqliteStore, count: int) -> list[AuditEvent]:
    with any_date(store.url):
        return await append(store, count, at=OLD)


async def broken_links(store: SqliteStore) -> list[int]:
    """The seqs at which a verifier finds the chain broken."""
    broken: list[int] = []
    before: Seal | None = None
    for link in await store.audit.sealed(0, 100):
        if link.event is None or seal(link.event, before) != link.seal:
            broken.append(link.seal.seq)
        before = link.seal
    return broken


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dutiful_audit_event SET reason = 'another'",
        "UPDATE OR REPLACE dutiful_audit_event SET id = (SELECT max(id) FROM dutiful_audit_event)",
        "DELETE FROM dutiful_audit_event",
        "UPDATE dutiful_audit_seal SET hash = 'another'",
        "DELETE FROM dutiful_audit_seal",
        "INSERT INTO dutiful_audit_seal VALUES (9, x'09', 'beyond the head')",
        "INSERT OR REPLACE INTO dutiful_audit_seal SELECT seq, event_id, 'another' FROM dutiful_audit_seal",
        "INSERT OR REPLACE INTO dutiful_audit_seal SELECT 6, event_id, 'twice' FROM dutiful_audit_seal WHERE seq = 5",
        "DELETE FROM dutiful_audit_anchor",
        "UPDATE dutiful_audit_anchor SET seq = 99",
        "UPDATE dutiful_audit_anchor SET seq = 1",
        "INSERT OR REPLACE INTO dutiful_audit_anchor VALUES (1, 1, 'earlier', 0, 1, 1)",
        "INSERT OR REPLACE INTO dutiful_audit_anchor VALUES (1, 5, 'of no seal', 0, 1, 1)",
    ],
)
async def test_the_audit_trail_is_not_changed_by_mistake(sqlite_path: Path, statement: str) -> None:
    async with opened(sqlite_path) as store:
        await append_old(store, 5)
        await seal_all(store)
        await store.audit.set_retention(DAY)
        assert await store.audit.trim(2, now=OLD + 2 * DAY) == 2
        trail = await store.audit.search(AuditFilter()), await store.audit.sealed(0, 10), await store.audit.anchor()

        with pytest.raises(apsw.ConstraintError, match=r"audit trail|audit event|seal"):
            by_hand(sqlite_path, statement)

        assert (await store.audit.search(AuditFilter()), await store.audit.sealed(0, 10)) == trail[:2]
        assert await store.audit.anchor() == trail[2]


async def test_an_audit_event_is_not_replaced_by_another_of_its_id(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await store.audit.append([kept := full_event()])

        by_hand(
            sqlite_path,
            "INSERT OR REPLACE INTO dutiful_audit_event SELECT id, act, at, 'mallory', role, origin, action, outcome,"
            " target, tenant, reason, before, after, address FROM dutiful_audit_event",
        )

        assert await store.audit.search(AuditFilter()) == [kept]
        assert await store.queries.check_places() == []


async def test_a_change_after_dropping_the_triggers_is_still_detected(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        events = [full_event(reason=f"reason {n}") for n in range(5)]
        await store.audit.append(events)
        await seal_all(store)
        assert await broken_links(store) == []

        by_hand(
            sqlite_path,
            "DROP TRIGGER dutiful_audit_event_stays",
            "DROP TRIGGER dutiful_audit_event_kept",
            "UPDATE dutiful_audit_event SET principal = 'mallory' WHERE reason = 'reason 1'",
            "DELETE FROM dutiful_audit_event WHERE reason = 'reason 3'",
        )

        assert await broken_links(store) == [2, 4]
        assert [link.event for link in await store.audit.sealed(3, 1)] == [None]
        assert "the audit event of seal 4 has been deleted" in await store.queries.check_places()


async def test_retention_does_not_hide_that_an_event_was_deleted(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        first, second, _ = await append_old(store, 3)
        await seal_all(store)
        by_hand(
            sqlite_path,
            "DROP TRIGGER dutiful_audit_event_kept",
            f"DELETE FROM dutiful_audit_event WHERE id = x'{second.id.hex}'",
        )

        await store.audit.set_retention(DAY)
        assert await store.audit.trim(10, now=OLD + 2 * DAY) == 1

        assert [link.seal.seq for link in await store.audit.sealed(0, 10)] == [2, 3]
        assert first not in await store.audit.search(AuditFilter())


@pytest.mark.parametrize("writer", ["apsw", "sqlite3"])
async def test_events_have_the_same_seals_with_either_library(sqlite_path: Path, writer: Any) -> None:
    events: list[AuditEvent] = [full_event(), event(before={"z": 1, "a": [0.1, 10**20]}, after=None)]
    async with opened(sqlite_path, driver=writer) as store:
        await store.audit.append(events)
        seals = await seal_all(store)

    async with opened(sqlite_path, driver="apsw" if writer == "sqlite3" else "sqlite3") as store:
        assert [link.event for link in await store.audit.sealed(0, 10)] == events
        assert await broken_links(store) == []
        assert await store.audit.head() == seals[-1]


async def test_a_text_is_searched_without_regard_to_case_in_any_alphabet(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        letter = await fail_one(store, TIMED_OUT | {"message": "Größe ÜBERSCHRITTEN"})
        await fail_one(store)

        for text in ("überschr", "GRÖSSE", "größe ü"):
            assert await found(store, text=text) == [letter.id]


async def test_long_waiting_dead_letters_do_not_keep_others_from_being_resolved(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are reprocessing, one call is bounded, and the next continues behind it."""
    monkeypatch.setattr(dead_letters, "_SEARCHED", 2)
    async with opened(sqlite_path) as store:
        letters = [await fail_one(store) for _ in range(7)]
        for letter in letters:
            await applied(store, act_on(letter, ReviewAct.REPROCESS))
        claims = await claim(store, levels=[QueueLevel("again", 100)])
        await complete(store, *claims[5:])

        looks = [await store.dead_letters.resolve_reprocessed(10, now=at(1)) for _ in range(4)]

        assert looks == [0, 0, 1, 1]
        (again,) = await store.dead_letters.search(DeadLetterFilter(status=[ReviewState.REPROCESSING]), limit=1)
        await complete(store, claims[0])
        assert [await store.dead_letters.resolve_reprocessed(10, now=at(2)) for _ in range(3)] == [1, 0, 0]
        assert again.id == letters[4].id


async def test_errors_and_options_of_any_shape_do_not_prevent_the_end_of_a_job(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        odd = {"type": 7, "message": ["x"], "class": None, "fingerprint": {"a": 1}}
        for options in ("[1]", '{"unique": 5}', '"text"'):
            claimed = await start_one(store, options=options)
            await settle(store, claimed, Failed(odd, final=True))

            letter = await the_letter(store, claimed.job_id)

            assert (letter.error_type, letter.message, letter.fingerprint, letter.unique_key) == (None,) * 4
            assert letter.errors == [odd]


async def test_a_step_that_was_rolled_back_by_a_failing_disk_can_be_taken_again(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        letter = await fail_one(store)
        review = act_on(letter, ReviewAct.REPROCESS, event=event())
        by_hand(
            sqlite_path,
            "CREATE TRIGGER trouble BEFORE INSERT ON dutiful_audit_event BEGIN SELECT RAISE(ROLLBACK, 'trouble'); END",
        )
        with pytest.raises(Exception, match="trouble"):
            await store.dead_letters.review([review], now=T0)
        assert await the_letter(store, letter.id) == letter
        by_hand(sqlite_path, "DROP TRIGGER trouble")

        await applied(store, review)

        assert (await claim_one(store, levels=[QueueLevel("again", 100)])).attempt == 1
        assert await store.queries.check_places() == []
