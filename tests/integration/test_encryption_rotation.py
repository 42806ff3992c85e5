"""Rotation of keys: everything that is sealed is sealed anew, in steps that can be interrupted, while workers run."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from receivers import SECRET, receiving
from role_logins import Roles, made
from running_workers import eventually, final, working
from sealed_jobs import NEW, OLD, WORD, dump, encrypted, write

from databases import Postgres
from dutiful import AuditFilter, CannotOpen, DataRefused, Dutiful, JobFailed, NotAllowed, Principal, Role
from dutiful.operator import encryption
from dutiful.operator.encryption import Rotation

NAMES = ["double", "refuse", "second_time", "report", "in_steps", "pipe", "listen"]
# Where those jobs leave sealed values.
EVERYWHERE = {
    *("schedule.job", "job.payload", "sent_event.data", "step.result", "phase.result", "phase.error", "phase.progress"),
    *("progress.message", "progress.items", "attempt.error", "finished.result", "finished.errors"),
    *("webhook_post.data", "dead_letter.job", "dead_letter.errors", "dead_letter.history", "tombstone.job"),
}


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "PAGE", 3)


async def filled(url: str, names: Sequence[str] = NAMES) -> dict[str, Any]:
    """Jobs of all kinds that have ended, sealed with the old key; one of them is deleted, but for its tombstone."""
    async with receiving() as receiver:
        app = encrypted(url, OLD, webhook_secrets=[SECRET], webhook_networks=["127.0.0.0/8"])
        app.webhook("all", receiver.url)
        app.schedule(app.kind("double"), every="1d", payload={"text": WORD})
        async with app, working(app):
            await app.send_event("said", "k", {"word": WORD})
            jobs = {name: await app.enqueue(name, {"text": WORD}) for name in names}
            for job in jobs.values():
                await final(app, job)
            client = await app.client()
            await eventually(client.store.schedules.all)
            await write(
                url,
                "insert into dutiful.tombstone (job_id, deleted_at, sent_at, job) "
                "select id, now(), now(), to_jsonb(j) from dutiful.job j limit 1",
                "INSERT INTO dutiful_tombstone (job_id, deleted_at, sent_at, job) "
                "SELECT id, created_at, created_at, json_object('payload', json(payload)) FROM dutiful_job LIMIT 1",
            )
        return jobs


async def uses(app: Dutiful) -> dict[str, dict[str, int]]:
    operator = await app.operator("ann")
    found = {use.key: use.places for use in await operator.encryption.status()}
    return {
        key: {name.replace("dead_letter_body", "dead_letter"): n for name, n in places.items()}
        for key, places in found.items()
    }


@pytest.mark.parametrize("app_url", ["sqlite", "postgres18", "pg16_url"], indirect=True)
@pytest.mark.usefixtures("small_pages")
async def test_everything_is_sealed_anew_and_opens_without_the_old_key(app_url: str) -> None:
    jobs = await filled(app_url)
    app = encrypted(app_url, NEW, OLD)
    async with app:
        before = await uses(app)
        assert set(before) == {"2026-05"} and set(before["2026-05"]) == EVERYWHERE
        done = await (await app.operator("ann")).encryption.rotate("yearly")
        assert done.rows > 0 and not done.unreadable and not done.written_meanwhile
        assert await uses(app) == {"2026-11": before["2026-05"]}
        again = await (await app.operator("ann")).encryption.rotate()
        assert again.rows == 0
        trail = await (await app.operator("ann")).audit.search(AuditFilter(action="encryption.rotate"))
        assert {(e.target, e.outcome.value) for e in trail} == {("2026-11", "requested"), ("2026-11", "succeeded")}

    alone = encrypted(app_url, NEW)
    async with alone:
        client, operator = await alone.client(), await alone.operator("ann")
        assert await client.result(jobs["double"].id) == WORD * 2
        assert await client.result(jobs["listen"].id) == [WORD, {"word": WORD}]
        with pytest.raises(JobFailed, match=f"no {WORD}"):
            await client.result(jobs["refuse"].id)
        opened = {name: await operator.encryption.open(job.id, "a test") for name, job in jobs.items()}
        assert opened["in_steps"].steps[0].result == [WORD, 1]
        assert WORD in opened["in_steps"].attempts[0].error["message"]  # type: ignore[index]
        assert opened["pipe"].phases[0].result == WORD
        assert opened["pipe"].phases[0].progress.message == f"one of {WORD}"  # type: ignore[union-attr]
        assert opened["report"].job.progress.items["total"] == 2  # type: ignore[union-attr, index]
        new = await operator.dead_letters.reprocess(jobs["refuse"].id)
        async with working(alone):
            with pytest.raises(JobFailed, match=f"no {WORD}"):
                await client.result(new.new_job_id, "30s")
    assert WORD.encode() not in await dump(app_url)


@pytest.mark.usefixtures("small_pages")
async def test_a_rotation_that_was_interrupted_goes_on_when_it_is_repeated(app_url: str) -> None:
    await filled(app_url)
    app = encrypted(app_url, NEW, OLD)

    def stop(done: Rotation) -> None:
        if done.place == "finished.result":
            raise KeyboardInterrupt

    async with app:
        operator = await app.operator("ann")
        with pytest.raises(KeyboardInterrupt):
            await operator.encryption.rotate(progress=stop)
        half = await uses(app)
        assert set(half) == {"2026-05", "2026-11"} and "job.payload" not in half["2026-05"]
        await operator.encryption.rotate()
        assert set(await uses(app)) == {"2026-11"}


async def test_a_row_that_was_written_meanwhile_keeps_what_was_written(app_url: str) -> None:
    await filled(app_url, ["report"])
    app = encrypted(app_url, NEW, OLD)
    async with app:
        store = (await app.client()).store.encryption
        (place,) = [one for one in store.places if one.name == "progress.message"]
        page = await store.page(place, None, 100)
        assert page.next is None and page.rows
        changes = [(row, "overwritten") for row in page.rows]
        await write(
            app_url,
            "update dutiful.progress set message = 'newer' where message is not null",
            "UPDATE dutiful_progress SET message = 'newer' WHERE message IS NOT NULL",
        )
        assert await store.replace(place, changes) == 0
        assert (await store.page(place, None, 100)).rows == []


async def test_values_whose_key_is_missing_stay_as_they_are_and_are_counted(app_url: str) -> None:
    jobs = await filled(app_url, ["double", "refuse"])
    app = encrypted(app_url, NEW)
    async with app:
        operator = await app.operator("ann")
        before = await uses(app)
        done = await operator.encryption.rotate()
        assert done.rows == 0 and done.unreadable["2026-05"] == sum(before["2026-05"].values())
        assert await uses(app) == before
        with pytest.raises(CannotOpen, match="2026-05"):
            await operator.encryption.open(jobs["double"].id)


async def test_jobs_run_while_their_payloads_are_sealed_anew(app_url: str) -> None:
    app = encrypted(app_url, OLD, NEW)
    async with app:
        jobs = [await app.enqueue("double", {"text": f"{WORD} {n}"}) for n in range(50)]
        rotating = encrypted(app_url, NEW, OLD)
        async with rotating, working(app):
            await (await rotating.operator("ann")).encryption.rotate()
            for n, job in enumerate(jobs):
                assert await job.result("60s") == f"{WORD} {n}" * 2
            await (await rotating.operator("ann")).encryption.rotate()
            assert set(await uses(rotating)) == {"2026-11"}


async def test_only_admins_of_all_tenants_rotate_and_each_opens_the_jobs_of_their_own(app_url: str) -> None:
    app = encrypted(app_url)
    async with app, working(app):
        job = await app.kind("double").options(tenant="acme").enqueue(WORD)
        await job.result("30s")
        for principal in (Principal(name="bob", role=Role.MANAGER), Principal(name="eve", tenant="acme")):
            with pytest.raises(NotAllowed):
                await (await app.operator(principal)).encryption.rotate()
        with pytest.raises(NotAllowed):
            await (await app.operator(Principal(name="eve", tenant="acme"))).encryption.status()
        with pytest.raises(Exception, match="there is no job"):
            await (await app.operator(Principal(name="mallory", tenant="rival"))).encryption.open(job.id)
        with pytest.raises(NotAllowed):
            await (await app.operator(Principal(name="vic", role=Role.VIEWER))).encryption.open(job.id)
        opened = await (await app.operator(Principal(name="eve", tenant="acme"))).encryption.open(job.id, "why")
        assert opened.job.result == WORD * 2
        (event, _) = await (await app.operator("ann")).audit.search(AuditFilter(action="job.open", principal="eve"))
        assert event.reason == "why" and WORD not in msgspec.json.encode(event).decode()


def test_the_owner_rotates_and_other_logins_may_not(postgres18: Postgres) -> None:
    with made(postgres18, tenants=True) as roles:
        asyncio.run(_rotate_as(roles))


async def _rotate_as(roles: Roles) -> None:
    def app(login: str, *rings: dict[str, bytes]) -> Dutiful:
        return encrypted(roles.logins.url(login), *rings, schema=roles.schema)

    async with app("worker") as worker, app("operator", NEW, OLD) as operator, app("owner", NEW, OLD) as owner:
        job = await worker.kind("double").options(tenant="acme").enqueue(WORD)
        assert set(await uses(operator)) == {"2026-05"}
        with pytest.raises(DataRefused, match="does not let this role do that"):
            await (await operator.operator("ann")).encryption.rotate()
        assert (await (await owner.operator("ann")).encryption.rotate()).rows == 1
        async with working(owner):  # which knows the new key
            assert await (await owner.client()).result(job.id, "30s") == WORD * 2
