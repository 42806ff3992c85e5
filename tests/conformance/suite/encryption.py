"""Sealed values: nothing of them is stored in clear, and rotation finds each of them and replaces what it has read."""

import base64
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from dutiful.core.job import Claim, NewJob, PhaseState
from dutiful.core.outcome import Done, Failed
from dutiful.core.sealed import key_ids
from dutiful.core.steps import SentEvent
from dutiful.payload.key_ring import JobSeal, KeyRing
from dutiful.payload.sealing import (
    open_event,
    open_job,
    open_part,
    open_payload,
    seal_error,
    seal_event,
    seal_items,
    seal_job,
    seal_message,
    seal_of,
    seal_of_record,
    seal_outcome,
    seal_step,
)
from dutiful.store import Store
from dutiful.store.encryption import Key, SealedPlace, SealedRow
from dutiful.stores.postgres import PostgresStore
from suite.builders import PIPELINE, T0, at, claim, enqueue, mark, new_id, new_job, progress, report_all, settle
from suite.steps import WEEK, call, wait

WORD = "Wolpertinger"
SAID = msgspec.json.encode({"text": WORD}).decode()
RING = KeyRing({"old": b"o" * 32})
ERROR = {"type": "ValueError", "message": f"no {WORD}", "traceback": f"in {WORD}", "class": "transient"}
ITEMS = {"total": 1, "in_progress": [], "completed": [WORD], "skipped": [], "failed": []}
# Where the jobs below leave sealed values.
PLACES = {
    *("job.payload", "sent_event.data", "step.result", "phase.result", "phase.error", "phase.progress"),
    *("progress.message", "progress.items", "attempt.error", "finished.result", "finished.errors"),
    *("dead_letter.job", "dead_letter.errors", "dead_letter.history"),
}


async def dump(url: str) -> bytes:
    """Everything that the database has stored: all rows of all tables, or all pages of the file and of its log."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return b"".join(one.read_bytes() for one in sorted(path.parent.glob(path.name + "*")))
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'dutiful'")
        rows = [await connection.fetch(f"select to_jsonb(t)::text from dutiful.{table[0]} t") for table in tables]
        return "\n".join(row[0] for found in rows for row in found).encode()
    finally:
        await connection.close()


def leaks(stored: bytes) -> list[bytes]:
    """How the word is found in what was stored: as it is, or written in hexadecimal or Base64."""
    words = [WORD.encode(), WORD.upper().encode(), WORD.lower().encode()]
    # Base64 has three spellings of a text, depending on where in it the word stands; the ends depend on what is around.
    encoded = [base64.b64encode(b" " * shift + words[0])[4:-4] for shift in range(3)]
    return [one for one in (*words, words[0].hex().encode(), *encoded) if one in stored]


def sealed(**fields: Any) -> NewJob:
    return seal_job(RING, new_job(**{"payload": SAID, "options": PIPELINE, "tenant": "acme"} | fields))


def seal_for(claimed: Claim) -> JobSeal:
    return seal_of(RING, claimed.job_id, claimed.tenant, claimed.kind, claimed.options)


async def places(store: Store, size: int = 100) -> dict[str, list[SealedRow]]:
    """The rows of each place that has sealed values."""
    found: dict[str, list[SealedRow]] = {}
    for place in store.encryption.places:
        after: Key | None = None
        while True:
            page = await store.encryption.page(place, after, size)
            rows = [row for row in page.rows if key_ids(_value(place, row))]
            if rows:
                found.setdefault(place.name.replace("dead_letter_body", "dead_letter"), []).extend(rows)
            if (after := page.next) is None:
                break
    return found


def _value(place: SealedPlace, row: SealedRow) -> Any:
    return row.value if place.is_text else msgspec.json.decode(row.value)


async def say_everywhere(store: Store, claimed: Claim) -> None:
    """Writes the word in every way in which a handler can."""
    seal = seal_for(claimed)
    items = msgspec.json.encode(seal_items(seal, ITEMS)).decode()
    report = progress(claimed, phase="download", message=seal_message(seal, WORD), items=items)
    error = msgspec.json.encode(seal_error(seal, ERROR)).decode()
    await report_all(store, mark(claimed, "download"), now=at(1))
    await report_all(store, report, now=at(2))
    result = seal.seal_text("phase download", SAID)
    await report_all(
        store, mark(claimed, "download", PhaseState.COMPLETED, result=result, progress=report.as_json()), now=at(3)
    )
    failed = mark(claimed, "process", PhaseState.FAILED, error=error)
    await report_all(store, mark(claimed, "process"), failed, now=at(4))
    fingerprint, stored = seal_step(seal, "charge", "f1", SAID)
    await store.steps.put([call(claimed, fingerprint=fingerprint, result=stored)], now=at(5))


class EncryptionSuite:
    async def test_no_plaintext_is_stored_and_rotation_knows_all_places(self, store: Store) -> None:
        done, dead = sealed(), sealed()
        await enqueue(store, done, dead)
        await store.steps.send(seal_event(RING, SentEvent(new_id(), "paid", "7", SAID, tenant="acme")), WEEK, now=T0)
        for claimed in await claim(store):
            assert open_payload(seal_for(claimed), claimed.payload) == SAID
            await say_everywhere(store, claimed)
            await settle(store, claimed, seal_outcome(seal_for(claimed), Failed(ERROR)), now=at(6))
        await store.promotion.promote(10, now=at(100))
        for claimed in await claim(store, now=at(100)):
            assert (await wait(store, claimed, now=at(100))).state == "done"
            outcome = Done(SAID) if claimed.job_id == done.id else Failed(ERROR, final=True)
            await settle(store, claimed, seal_outcome(seal_for(claimed), outcome), now=at(101))

        url = store.direct_dsn if isinstance(store, PostgresStore) else store.url
        stored = await dump(url)
        assert b"$sealed" in stored and leaks(stored) == []
        assert set(await places(store)) == PLACES

    async def test_what_is_stored_opens_for_its_job(self, store: Store) -> None:
        await enqueue(store, job := sealed())
        (claimed,) = await claim(store)
        await say_everywhere(store, claimed)
        event = SentEvent(new_id(), "paid", "7", SAID, tenant="acme")
        await store.steps.send(seal_event(RING, event), WEEK, now=T0)
        waited = await wait(store, claimed, now=at(5))
        await settle(store, claimed, seal_outcome(seal_for(claimed), Done(SAID)), now=at(6))

        record = await store.queries.job(job.id)
        assert record is not None
        opened, seal = open_job(RING, record), seal_of_record(RING, record)

        assert (opened.payload, opened.result) == ({"text": WORD}, {"text": WORD})
        assert opened.progress is not None and (opened.progress.message, opened.progress.items) == (WORD, ITEMS)
        steps = [open_part(seal, one) for one in await store.steps.all(job.id)]
        assert [one.result for one in steps if one.name == "charge"] == [{"text": WORD}]
        assert open_event(RING, "paid", "7", "acme", waited.result) == {"text": WORD}
        download, process, *_ = [open_part(seal, one) for one in await store.progress.phases(job.id)]
        assert download.result == {"text": WORD} and process.error is not None
        assert process.error["message"] == f"no {WORD}"

    async def test_small_pages_have_the_same_rows_as_a_large_one(self, store: Store) -> None:
        await enqueue(store, *(sealed() for _ in range(5)), new_job(), *(sealed() for _ in range(2)))
        for claimed in await claim(store, limit=4):
            await say_everywhere(store, claimed)

        assert await places(store, size=2) == await places(store)

    async def test_a_value_is_replaced_only_where_it_is_as_it_was_read(self, store: Store) -> None:
        await enqueue(store, sealed(), sealed())
        (place,) = [one for one in store.encryption.places if one.name == "job.payload"]
        rows = (await store.encryption.page(place, None, 10)).rows
        new = sealed().payload

        assert await store.encryption.replace(place, [(rows[0], new)]) == 1
        assert await store.encryption.replace(place, [(rows[0], SAID), (rows[1], new)]) == 1

        replaced = (await store.encryption.page(place, None, 10)).rows
        assert [msgspec.json.decode(row.value) for row in replaced] == [msgspec.json.decode(new)] * 2
