"""Encrypted kinds with real workers: what is stored, logged and shown holds no plaintext, and nothing is lost."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from receivers import SECRET, receiving
from running_workers import eventually, final, working
from sealed_jobs import NEW, OLD, WORD, apart, dump, encrypted, in_processes, write

from dutiful import AuditFilter, CannotOpen, Context, JobCancelled, JobFailed, JobRecord, KeyRing, State, UsageError
from dutiful.core.sealed import MESSAGE, is_sealed
from dutiful.payload.sealing import open_part, seal_of_record
from dutiful.testing import app_on

MARKER = {"$sealed": {"key": "2026-05"}}


@pytest.mark.parametrize("app_url", ["sqlite", "postgres18", "pg16_url"], indirect=True)
async def test_neither_the_database_nor_logs_hold_plaintext(app_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with receiving() as receiver:
        app = encrypted(app_url, webhook_secrets=[SECRET], webhook_networks=["127.0.0.0/8"])
        app.webhook("all", receiver.url)
        app.schedule(app.kind("double"), every="1d", name="daily", payload={"text": WORD})
        async with app, working(app):
            names = ["double", "shout", "refuse", "second_time", "give_up", "report", "in_steps", "pipe", "commit"]
            await app.send_event("said", "k", {"word": WORD})
            names.append("listen")
            jobs = {name: await app.enqueue(name, {"text": WORD}) for name in names}
            flow = app.workflow()
            first = flow.add(app.kind("double").call(WORD))
            last = flow.add(app.kind("join").call(first.result, WORD))
            chained = (await flow.enqueue())[last]
            records = {name: await final(app, job) for name, job in jobs.items()}

            assert await jobs["double"].result() == WORD * 2
            assert await jobs["shout"].result() == {"loud": WORD.upper(), "text": WORD}
            assert await jobs["second_time"].result() == WORD
            assert await jobs["in_steps"].result() == [WORD, 1]
            assert await jobs["pipe"].result() == {"one": WORD}
            assert await jobs["commit"].result() == {"text": WORD}
            assert await jobs["listen"].result() == [WORD, {"word": WORD}]
            assert await chained.result("30s") == f"{WORD * 2} and {WORD}"
            with pytest.raises(JobFailed, match=f"Refused: no {WORD}"):
                await jobs["refuse"].result()
            with pytest.raises(JobCancelled, match=f"because of {WORD}"):
                await jobs["give_up"].result()
            assert opened(app, records["pipe"]).errors[0]["message"] == WORD
            assert opened(app, records["report"]).progress.items["failed"] == [
                {"item": f"{WORD} 2", "error": f"Refused: {WORD} 2"}
            ]
            assert opened(app, records["report"]).progress.message.startswith("working on")
            await eventually(lambda: posted(receiver, 12))
        stored = await dump(app_url)
    assert b"$sealed" in stored
    assert WORD.encode() not in stored and WORD.upper().encode() not in stored
    assert WORD.lower() not in caplog.text.lower()
    sent = b"".join(call.body for call in receiver.calls)
    assert WORD.encode() not in sent and b'"text"' not in sent and b'{"$sealed":{"key":"2026-05"}}' in sent


def opened(app: Any, record: JobRecord) -> Any:
    return app.open(record)


async def posted(receiver: Any, count: int) -> bool:
    return len(receiver.calls) >= count


async def test_a_payload_that_was_moved_to_another_job_or_tenant_becomes_a_dead_letter(app_url: str) -> None:
    app = encrypted(app_url)
    async with app:
        double = app.kind("double").options(tenant="acme")
        first, second = await double.enqueue(f"{WORD} 1"), await double.enqueue(f"{WORD} 2")
        third = await double.enqueue(f"{WORD} 3")
        await write(
            app_url,
            "update dutiful.job set payload = (select payload from dutiful.job where id = $1) where id = $2",
            "UPDATE dutiful_job SET payload = (SELECT payload FROM dutiful_job WHERE id = ?) WHERE id = ?",
            first.id,
            second.id,
        )
        await write(
            app_url,
            "update dutiful.job set tenant = 'rival' where id = $1",
            "UPDATE dutiful_job SET tenant = 'rival' WHERE id = ?",
            third.id,
        )
        async with working(app):
            moved, taken = await final(app, second), await final(app, third)
            assert (await final(app, first)).state is State.COMPLETED
    assert moved.state is taken.state is State.FAILED
    assert moved.attempt == 1
    for record, what in ((moved, "job"), (taken, "tenant")):
        assert record.error is not None
        assert record.error["type"] == "CannotOpen" and record.error["class"] == "non_retryable"
        assert f"it was sealed for another {what}" in record.error["message"]


async def test_a_payload_or_result_that_was_changed_does_not_open(app_url: str) -> None:
    app = encrypted(app_url)
    async with app:
        job = await app.enqueue("double", {"text": WORD})
        record = await app.find(job.id)
        assert record is not None
        text = record.payload["$sealed"]["text"]
        changed = text[:40] + ("A" if text[40] != "A" else "B") + text[41:]
        payload = msgspec.json.encode({"$sealed": {**record.payload["$sealed"], "text": changed}}).decode()
        statement = "update dutiful.job set payload = $1::text::jsonb where id = $2"
        await write(app_url, statement, "UPDATE dutiful_job SET payload = ? WHERE id = ?", payload, job.id)
        async with working(app):
            failed = await final(app, job)
        assert failed.error is not None and "it was changed since it was sealed" in failed.error["message"]
        with pytest.raises(CannotOpen, match="the payload cannot be opened"):
            app.open(failed)


async def test_a_job_whose_key_is_missing_runs_once_the_key_is_back(app_url: str) -> None:
    async with encrypted(app_url, OLD) as producer:
        job = await producer.enqueue("double", {"text": WORD})
    other = encrypted(app_url, NEW)
    async with other, working(other):
        failed = await final(other, job)
    assert failed.state is State.FAILED and failed.error is not None
    assert "sealed with the key '2026-05', which is not in the ring here (2026-11)" in failed.error["message"]

    both = encrypted(app_url, NEW, OLD)
    async with both:
        again = await (await both.operator("ann")).dead_letters.reprocess(job.id)
        async with working(both):
            assert await (await both.client()).result(again.new_job_id, "30s") == WORD * 2


async def test_an_operator_without_keys_runs_jobs_again_and_sees_them_as_sealed(app_url: str) -> None:
    app, server = encrypted(app_url), plain(app_url)
    async with app, server:
        async with working(app):
            failed, done = await app.enqueue("refuse", {"text": WORD}), await app.enqueue("double", {"text": WORD})
            await final(app, failed), await final(app, done)
            operator = await server.operator("ann")
            letter = await operator.dead_letters.get(failed.id)
            again = await operator.dead_letters.reprocess(failed.id)
            copy = await operator.jobs.retry(done.id)
            client = await app.client()
            assert await client.result(copy.job_id, "30s") == WORD * 2
            with pytest.raises(JobFailed, match=f"no {WORD}"):
                await client.result(again.new_job_id, "30s")
            twice = await operator.jobs.retry(copy.job_id)  # a copy of a copy
            assert await client.result(twice.job_id, "30s") == WORD * 2
        record = await operator.jobs.get(done.id)
        assert (record.payload, record.result) == (MARKER, MARKER)
        assert (letter.payload, letter.message, letter.error_type) == (MARKER, MESSAGE, "Refused")
        assert letter.errors[0]["$sealed"] == letter.history[0]["error"]["$sealed"] == {"key": "2026-05"}
        with pytest.raises(UsageError, match="is sealed, and this process has no key: set encryption_keys"):
            await (await server.client()).result(done.id)
        # What it would have to seal itself is refused, because it has no key.
        with pytest.raises(UsageError, match="kind double is encrypted, and this process has no key"):
            await server.enqueue("double", {"text": WORD})
        with pytest.raises(UsageError, match="is encrypted, and this process has no key"):
            async with working(server):
                pass


async def test_an_edited_payload_is_sealed_for_the_new_job(app_url: str) -> None:
    app = encrypted(app_url)
    async with app, working(app):
        failed = await app.enqueue("refuse", {"text": WORD})
        await final(app, failed)
        operator = await app.operator("ann")
        done = await operator.dead_letters.reprocess(failed.id, payload={"text": f"{WORD} again"})
        with pytest.raises(JobFailed, match=f"no {WORD} again"):
            await (await app.client()).result(done.new_job_id, "30s")
        trail = await operator.audit.search(AuditFilter(limit=10))
    assert WORD.encode() not in await dump(app_url)
    assert any(event.after == {**event.after, "changed": ["payload"]} for event in trail if event.after)


async def test_events_show_sealed_values_as_sealed(app_url: str) -> None:
    app = encrypted(app_url)
    async with app, working(app):
        since = datetime.now(UTC)
        for name in ("double", "refuse", "report", "pipe"):
            await final(app, await app.enqueue(name, {"text": WORD}))
        seen: list[Any] = []
        async with app.events(since=since) as stream:
            async for item in stream:
                seen.append(item)
                if sum(one.type in ("completed", "failed") for one in seen) == 4:
                    break
    text = msgspec.json.encode([msgspec.to_builtins(item) for item in seen]).decode()
    assert WORD not in text and '"text"' not in text and '{"$sealed":{"key":"2026-05"}}' in text


async def test_jobs_stored_before_their_kind_was_encrypted_still_run(app_url: str) -> None:
    before = encrypted(app_url, encrypted=False)
    async with before:
        job = await before.enqueue("double", {"text": "plain"})
        assert not is_sealed((await job.record()).payload)
    app = encrypted(app_url)
    async with app, working(app):
        assert await (await app.client()).result(job.id, "30s") == "plainplain"
        assert is_sealed((await final(app, job)).result)


async def test_a_scheduled_payload_is_sealed_and_runs(app_url: str) -> None:
    app = encrypted(app_url)
    app.schedule(app.kind("double"), every="1h", payload={"text": WORD})
    async with app, working(app):
        client = await app.client()
        (record,) = await eventually(client.store.schedules.all)
        assert is_sealed(record.job["payload"])
        await write(
            app_url,
            "update dutiful.schedule set next_at = now() - interval '1 second'",
            "UPDATE dutiful_schedule SET next_at = next_at - 3600 * 1000000",
        )
        (job,) = await eventually(lambda: listed(app))
        assert await client.result(job.id, "30s") == WORD * 2


async def listed(app: Any) -> Any:
    return (await app.jobs(kind="double")).jobs


async def test_steps_and_phases_open_for_their_job_only(app_url: str) -> None:
    app = encrypted(app_url)
    async with app, working(app):
        job = await app.enqueue("in_steps", {"text": WORD})
        record = await final(app, job)
        (step,) = await (await app.client()).store.steps.all(job.id)
        (attempt,) = await (await app.client()).store.queries.attempts(job.id)
    assert is_sealed(step.result) and step.fingerprint == MESSAGE
    assert app.key_ring is not None
    seal = seal_of_record(app.key_ring, record)
    assert open_part(seal, step).result == [WORD, 1]
    assert open_part(seal, attempt).error is not None
    with pytest.raises(CannotOpen, match="for another job"):
        open_part(seal_of_record(app.key_ring, msgspec.structs.replace(record, id=app.new_id())), step)
    with pytest.raises(CannotOpen, match="for another field"):
        open_part(seal, msgspec.structs.replace(step, name="other"))


def plain(url: str) -> Any:
    """The same app in a process without keys."""
    app = encrypted(url, encrypted=True)
    app._own_ring = None
    return app


async def test_keys_of_the_settings_are_never_shown() -> None:
    key = KeyRing({"k": b"x" * 32})
    assert repr(key) == "<key ring of k>"
    for wrong in ("k:" + "s3cret" * 3, "s3cret" * 6, "k:!!", "a b:c"):
        with pytest.raises(UsageError) as caught:
            encrypted("sqlite:///unused.db", encryption_keys=[wrong]).settings  # noqa: B018
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_sql_cannot_enqueue_an_encrypted_kind_in_clear(app_url: str) -> None:
    app = encrypted(app_url)
    async with app:
        await app.migrate()  # stores the rules
        job = await app.enqueue("double", {"text": WORD})
        sealed = msgspec.json.encode((await (await app.client()).get(job.id)).payload).decode()
        connection = await asyncpg.connect(app_url)
        try:
            enqueue = "select dutiful.enqueue('double', $1::text::jsonb)"
            for payload in ('{"text": "Wolpertinger"}', "{}", '{"$sealed": {"key": "k"}}', sealed[:-1] + ', "a": 1}'):
                with pytest.raises(
                    asyncpg.CheckViolationError, match="kind double: it is encrypted, and SQL has no key"
                ):
                    await connection.execute(enqueue, payload)
            # What is sealed, as a schedule stores it, passes; but it opens only for its own job.
            (other,) = await connection.fetchrow(enqueue, sealed)
        finally:
            await connection.close()
        async with working(app):
            failed = await (await app.client())._waiter.wait(other, None)
    assert failed.error is not None and "sealed for another job" in failed.error["message"]


async def test_a_job_claimed_by_hand_is_sealed_as_well(app_url: str) -> None:
    app = encrypted(app_url)
    async with app:
        first, second = await app.enqueue("double", {"text": WORD}), await app.enqueue("double", {"text": WORD})
        for job in (first, second):
            record = await app.find(job.id)
            assert record is not None and app.open(record).payload == {"text": WORD}
            claimed = await app.claim(record, "by hand")
            assert claimed is not None
            await (claimed.complete(WORD) if job is first else claimed.fail("retryable", f"no {WORD}", retry=False))
        assert await first.result() == WORD
        with pytest.raises(JobFailed, match=WORD):
            await second.result()
    assert WORD.encode() not in await dump(app_url)


async def test_batches_are_sealed_job_by_job(app_url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = encrypted(app_url)
    async with app:
        good = [await app.enqueue("together", {"text": f"{WORD} {n}"}) for n in range(3)]
        bad = await app.enqueue("together", {"text": WORD, "bad": True})
        moved = await app.enqueue("together", {"text": WORD})
        await write(
            app_url,
            "update dutiful.job set payload = (select payload from dutiful.job where id = $1) where id = $2",
            "UPDATE dutiful_job SET payload = (SELECT payload FROM dutiful_job WHERE id = ?) WHERE id = ?",
            *(bad.id, moved.id),
        )
        async with working(app):
            assert [await job.result("30s") for job in good] == [f"{WORD} {n}" for n in range(3)]
            with pytest.raises(JobFailed, match=f"no {WORD}"):
                await bad.result("30s")
            with pytest.raises(JobFailed, match="it was sealed for another job"):
                await moved.result("30s")
    assert WORD.encode() not in await dump(app_url)
    assert WORD not in caplog.text


async def test_a_process_of_a_job_gets_its_payload_and_no_word_is_stored(
    migrated_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, url = in_processes, f"sqlite:///{migrated_path}"
    app.configure(database_url=url)
    async with app, working(app):
        good, bad = await apart.enqueue(WORD), await apart.enqueue(f"{WORD}!")
        assert await good.result("60s") == WORD * 2
        with pytest.raises(JobFailed, match=f"no {WORD}!"):
            await bad.result("60s")
    assert WORD.encode() not in await dump(url)
    assert WORD not in caplog.text


async def test_kinds_that_spawn_are_sealed(app_url: str) -> None:
    app = encrypted(app_url)

    @app.job
    async def spawner(ctx: Context, text: str) -> str:
        with pytest.raises(UsageError, match="kind double is encrypted, so that its jobs cannot be spawned with a key"):
            await ctx.spawn(app.kind("double").call(text), key="k")
        flow = await ctx.spawn(app.kind("double").call(text))
        return str(flow.correlation_id)

    async with app, working(app):
        job = await spawner.enqueue(WORD)
        assert await job.result("30s")
        (child,) = await eventually(lambda: listed(app))
        assert await (await app.client()).result(child.id, "30s") == WORD * 2
    assert WORD.encode() not in await dump(app_url)


async def test_the_test_kit_shows_encrypted_jobs_opened() -> None:
    app = encrypted("sqlite:///unused.db")
    async with app_on(app) as kit:
        await app.enqueue("double", {"text": WORD})
        job = await kit.assert_enqueued("double", text=WORD)
        (ran,) = await kit.drain()
    assert (ran.job.id, ran.job.payload, ran.job.result) == (job.id, {"text": WORD}, WORD * 2)
