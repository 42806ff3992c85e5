"""What only SQLite's way of reviewing and auditing has to prove."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from dutiful.auditing import AuditFilter
from dutiful.core.audit import AuditEvent, Seal, seal
from dutiful.core.outcome import Failed
from dutiful.core.review import ReviewAct, ReviewState
from dutiful.reviewing import DeadLetterFilter
from dutiful.stores.sqlite import SqliteStore, reviewing
from dutiful.testing.store_suite.audit import DAY, append, event, full_event, seal_all
from dutiful.testing.store_suite.builders import T0, at, claim, claim_one, complete, settle, start_one
from dutiful.testing.store_suite.dead_letter import TIMED_OUT, act_on, applied, bury, found, the_letter
from dutiful.working import Line


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


async def broken_links(store: SqliteStore) -> list[int]:
    """The seqs at which a verifier finds that the chain does not hold."""
    broken: list[int] = []
    before: Seal | None = None
    for link in await store.sealed(0, 100):
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
        "INSERT OR REPLACE INTO dutiful_audit_anchor VALUES (1, 1, 'earlier', 0)",
        "INSERT OR REPLACE INTO dutiful_audit_anchor VALUES (1, 5, 'of no seal', 0)",
    ],
)
async def test_the_audit_trail_is_not_changed_by_mistake(sqlite_path: Path, statement: str) -> None:
    async with opened(sqlite_path) as store:
        await append(store, 5)
        await seal_all(store)
        await store.keep_audit(DAY)
        await store.trim_audit(2, now=T0 + 2 * DAY)
        trail = await store.audit_events(AuditFilter()), await store.sealed(0, 10), await store.audit_anchor()

        with pytest.raises(apsw.ConstraintError, match=r"audit trail|audit event|seal"):
            by_hand(sqlite_path, statement)

        assert (await store.audit_events(AuditFilter()), await store.sealed(0, 10)) == trail[:2]
        assert await store.audit_anchor() == trail[2]


async def test_an_audit_event_is_not_replaced_by_another_of_its_id(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await store.append_audit([kept := full_event()])

        by_hand(
            sqlite_path,
            "INSERT OR REPLACE INTO dutiful_audit_event SELECT id, act, at, 'mallory', role, origin, action, outcome,"
            " target, tenant, reason, before, after, address FROM dutiful_audit_event",
        )

        assert await store.audit_events(AuditFilter()) == [kept]
        assert await store.check_places() == []


async def test_whoever_drops_the_triggers_is_still_found_out(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        events = [full_event(reason=f"reason {n}") for n in range(5)]
        await store.append_audit(events)
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
        assert [link.event for link in await store.sealed(3, 1)] == [None]
        assert "the audit event of seal 4 has been deleted" in await store.check_places()


async def test_retention_does_not_cover_up_that_an_event_was_deleted(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        first, second, _ = await append(store, 3)
        await seal_all(store)
        by_hand(
            sqlite_path,
            "DROP TRIGGER dutiful_audit_event_kept",
            f"DELETE FROM dutiful_audit_event WHERE id = x'{second.id.hex}'",
        )

        await store.keep_audit(DAY)
        assert await store.trim_audit(10, now=T0 + 2 * DAY) == 1

        assert [link.seal.seq for link in await store.sealed(0, 10)] == [2, 3]
        assert first not in await store.audit_events(AuditFilter())


@pytest.mark.parametrize("writer", ["apsw", "sqlite3"])
async def test_events_have_the_same_seals_with_either_library(sqlite_path: Path, writer: Any) -> None:
    events: list[AuditEvent] = [full_event(), event(before={"z": 1, "a": [0.1, 10**20]}, after=None)]
    async with opened(sqlite_path, driver=writer) as store:
        await store.append_audit(events)
        seals = await seal_all(store)

    async with opened(sqlite_path, driver="apsw" if writer == "sqlite3" else "sqlite3") as store:
        assert [link.event for link in await store.sealed(0, 10)] == events
        assert await broken_links(store) == []
        assert await store.audit_head() == seals[-1]


async def test_a_text_is_looked_for_without_regard_to_the_case_of_any_letter(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        letter = await bury(store, TIMED_OUT | {"message": "Größe ÜBERSCHRITTEN"})
        await bury(store)

        for text in ("überschr", "GRÖSSE", "größe ü"):
            assert await found(store, text=text) == [letter.id]


async def test_those_that_wait_for_long_do_not_keep_others_from_being_resolved(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are reprocessing, one look is bounded, and the next goes on behind it."""
    monkeypatch.setattr(reviewing, "_LOOKED_THROUGH", 2)
    async with opened(sqlite_path) as store:
        letters = [await bury(store) for _ in range(7)]
        for letter in letters:
            await applied(store, act_on(letter, ReviewAct.REPROCESS))
        claims = await claim(store, lines=[Line("again", 100)])
        await complete(store, *claims[5:])

        looks = [await store.resolve_reprocessed(10, now=at(1)) for _ in range(4)]

        assert looks == [0, 0, 1, 1]
        (again,) = await store.dead_letters(DeadLetterFilter(status=[ReviewState.REPROCESSING]), limit=1)
        await complete(store, claims[0])
        assert [await store.resolve_reprocessed(10, now=at(2)) for _ in range(3)] == [1, 0, 0]
        assert again.id == letters[4].id


async def test_an_error_and_options_of_any_shape_do_not_keep_a_job_from_its_end(sqlite_path: Path) -> None:
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
        letter = await bury(store)
        review = act_on(letter, ReviewAct.REPROCESS, event=event())
        by_hand(
            sqlite_path,
            "CREATE TRIGGER trouble BEFORE INSERT ON dutiful_audit_event BEGIN SELECT RAISE(ROLLBACK, 'trouble'); END",
        )
        with pytest.raises(Exception, match="trouble"):
            await store.review([review], now=T0)
        assert await the_letter(store, letter.id) == letter
        by_hand(sqlite_path, "DROP TRIGGER trouble")

        await applied(store, review)

        assert (await claim_one(store, lines=[Line("again", 100)])).attempt == 1
        assert await store.check_places() == []
