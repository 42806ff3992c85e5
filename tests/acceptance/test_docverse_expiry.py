"""git_ref_audit, purgatory_cleanup and credential_reencrypt, over all organizations."""

import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.fernet import Fernet
from docverse import CleanDocverse, Host, HostedProject, hosting, installed
from docverse_upkeep import (
    FailingStore,
    Repository,
    Together,
    Waiting,
    on_store,
    replaced,
    result_of,
    rule,
    run,
    sql,
)

from databases import Postgres
from examples.docverse import public_ids
from examples.docverse.config import Config
from examples.docverse.jobs import docverse_app
from examples.docverse.services.credentials import CredentialEncryptor

SECRET = "a secret of sixteen or more"


@pytest.fixture(scope="module")
def clean(postgres18: Postgres) -> Iterator[CleanDocverse]:
    with installed(postgres18) as clean:
        yield clean


@pytest.fixture
async def host(clean: CleanDocverse, tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(clean.reset(), tmp_path) as host:
        yield host


async def tracked(host: Host, *branches: str) -> tuple[Repository, HostedProject]:
    repository = Repository(host, "rubin/guide")
    repository.commit(readme_md="a guide")
    guide = await host.add_project(source_repository="rubin/guide")
    for branch in branches:
        repository.git("branch", branch)
        await guide.publish(branch, {"index.html": branch})
    return repository, guide


@pytest.mark.req("D99", "D100")
async def test_editions_whose_ref_is_gone_are_flagged_or_deleted_by_rule(host: Host) -> None:
    await host.add_org()
    async with host.working():
        repository, guide = await tracked(host, "kept", "gone", "exempt")
        await host.call("PUT", f"{guide.path}/editions/exempt/lifecycle", json={"exempt": True})
        for branch in ("gone", "exempt"):
            repository.git("branch", "--delete", "--force", branch)
        nothing: dict[str, Any] = {"rubin/guide": {"flagged": [], "cleared": [], "deleted": []}}
        assert await result_of(host, await run(host, "git_ref_audit")) == nothing, "there is no rule"
        await rule(host, "ref_deleted", action="delete", enabled=False)
        assert await result_of(host, await run(host, "git_ref_audit")) == nothing, "the rule is off"

        await rule(host, "ref_deleted", action="flag")
        flagged = await run(host, "git_ref_audit")
        assert (await result_of(host, flagged))["rubin/guide"]["flagged"] == ["exempt", "gone"]
        assert (await guide.edition("gone"))["ref_deleted"] and not (await guide.edition("kept"))["ref_deleted"]
        assert await guide.page("v/gone/") == "gone"

        await rule(host, "ref_deleted", guide.path, action="delete")
        repository.git("branch", "back")
        deleted = await run(host, "git_ref_audit")
        assert await result_of(host, deleted) == {"rubin/guide": {"flagged": [], "cleared": [], "deleted": ["gone"]}}
        await guide.page("v/gone/", 404)
        assert await guide.page("v/kept/") == "kept" and await guide.page("v/exempt/") == "exempt"
        assert "v/gone/" not in await guide.page("v/")

        repository.git("branch", "exempt")
        cleared = await run(host, "git_ref_audit")
        assert (await result_of(host, cleared))["rubin/guide"]["cleared"] == ["exempt"]
        assert not (await guide.edition("exempt"))["ref_deleted"]


@pytest.mark.req("D99", "D100")
async def test_the_default_ref_is_audited_and_its_edition_is_flagged_but_never_deleted(host: Host) -> None:
    await host.add_org()
    await rule(host, "ref_deleted", action="delete")
    async with host.working():
        repository, guide = await tracked(host)
        await guide.publish("main", {"index.html": "root"})
        repository.git("branch", "--move", "main", "trunk")
        gone = await run(host, "git_ref_audit")
        assert await result_of(host, gone) == {"rubin/guide": {"flagged": ["__main"], "cleared": [], "deleted": []}}
        assert (await guide.edition("__main"))["ref_deleted"] and await guide.page() == "root"
        assert "(deleted)" in await guide.page("v/")

        repository.git("branch", "main")
        back = await run(host, "git_ref_audit")
        assert (await result_of(host, back))["rubin/guide"]["cleared"] == ["__main"]
        assert "(deleted)" not in await guide.page("v/")


@pytest.mark.req("D99", "D100")
async def test_an_edition_that_is_exempted_while_the_audit_waits_for_its_lock_is_kept(host: Host) -> None:
    await host.add_org()
    await rule(host, "ref_deleted", action="delete")
    async with host.working():
        repository, guide = await tracked(host, "gone")
    repository.git("branch", "--delete", "--force", "gone")

    async def exempted() -> None:
        sql(host, "update docverse.edition set lifecycle_exempt = true where slug = 'gone'")

    owner = await host.services.hosting.project("rubin", "guide")
    audited = await host.services.ref_audit.audit(owner, Waiting(exempted))
    assert audited["deleted"] == [] and await guide.page("v/gone/") == "gone"


@pytest.mark.req("D99")
async def test_a_repository_that_cannot_be_read_deletes_nothing_and_stops_no_other(host: Host) -> None:
    await host.add_org()
    await rule(host, "ref_deleted", action="delete")
    async with host.working():
        repository, _ = await tracked(host, "gone")
        repository.git("branch", "--delete", "--force", "gone")
        missing = await host.add_project(slug="missing", source_repository="rubin/missing")
        empty = await host.add_project(slug="empty", source_repository="rubin/empty")
        Repository(host, "rubin/empty")
        for project in (missing, empty):
            await project.publish("branch", {"index.html": "still here"})

        job = await run(host, "git_ref_audit")

        assert job["status"] == "completed_with_errors"
        assert sorted(error["item"] for error in job["errors"]) == ["rubin/empty", "rubin/missing"]
        assert (await result_of(host, job))["rubin/guide"]["deleted"] == ["gone"]
        for project in (missing, empty):
            assert await project.page("v/branch/") == "still here"


@pytest.mark.req("D99", "D100")
async def test_an_edition_that_cannot_be_deleted_keeps_no_other_from_being_audited(host: Host) -> None:
    await host.add_org()
    await rule(host, "ref_deleted", action="delete")
    async with host.working():
        repository, guide = await tracked(host, "gone-1", "gone-2")
        repository.git("branch", "--delete", "--force", "gone-1", "gone-2")
        host.edge.refused.add("rubin/guide/gone-1.json")
        job = await run(host, "git_ref_audit")
        assert job["status"] == "failed" and "gone-1" in str(job["errors"])
        await guide.edition("gone-1")
        await host.call("GET", f"{guide.path}/editions/gone-2", 404)


@pytest.mark.req("D99")
async def test_a_ref_whose_name_is_not_utf8_keeps_no_other_from_being_audited(host: Host) -> None:
    await host.add_org()
    await rule(host, "ref_deleted", action="delete")
    async with host.working():
        repository, _ = await tracked(host, "gone")
        repository.git("update-ref", os.fsdecode(b"refs/heads/caf\xe9"), "main")
        repository.git("branch", "--delete", "--force", "gone")
        job = await run(host, "git_ref_audit")
    assert (await result_of(host, job))["rubin/guide"]["deleted"] == ["gone"]


async def condemned(host: Host, org: str, *ages: int) -> None:
    await host.add_org(org)
    (org_id,) = sql(host, "select id from docverse.organization where slug = %s", org)[0]
    project = await host.add_project(org)
    for number, days in enumerate(ages):
        build = await project.upload(f"ref-{number}")
        prefix = f"purgatory/{org}/{number}"
        for name in ("index.html", "a/b.html"):
            await host.services.objects.put(f"{prefix}/{name}", b"x")
        sql(
            host,
            "insert into docverse.purgatory (org_id, build_id, object_prefix, moved_from, reason, date_moved)"
            " select %s, id, %s, object_prefix, 'build_orphan', clock_timestamp() - make_interval(days => %s)"
            " from docverse.build where public_id = (select max(public_id) from docverse.build where git_ref = %s"
            " and project_id = (select id from docverse.project where org_id = %s))",
            org_id, prefix, days, f"ref-{number}", org_id,
        )  # fmt: skip
        assert build


@pytest.mark.req("D101")
async def test_content_is_deleted_for_good_after_each_organizations_retention(host: Host) -> None:
    await condemned(host, "rubin", 29, 31)
    await condemned(host, "other", 2, 31, 40)
    await host.call("PUT", "/orgs/other/retention", json={"days": 1})
    async with host.working():
        job = await run(host, "purgatory_cleanup")
    assert (await result_of(host, job))["objects"] == {"other": 6, "rubin": 2}
    left = [info.key for info in await host.services.objects.objects("purgatory")]
    assert left == ["purgatory/rubin/0/a/b.html", "purgatory/rubin/0/index.html"]
    assert sql(host, "select object_prefix from docverse.purgatory") == [("purgatory/rubin/0",)]


@pytest.mark.req("D98", "D101")
async def test_content_that_a_dead_worker_did_not_move_is_not_forgotten(host: Host) -> None:
    await host.add_org()
    guide = await host.add_project()
    await rule(host, "build_orphan", older_than_days=1)
    await host.call("PUT", "/orgs/rubin/retention", json={"days": 0})
    await guide.upload("main", {"index.html": "orphan"})
    sql(host, "update docverse.build set date_created = date_created - interval '2 days'")
    async with host.working(on_store(FailingStore(host.config.objects, "/builds/", 2))):
        assert (await run(host, "lifecycle_eval"))[
            "status"
        ] == "failed"  # the build is deleted, its content is not moved
        await run(host, "purgatory_cleanup")
        again = await run(host, "lifecycle_eval")
        assert (await result_of(host, again))["rubin"]["finished"] == 1
        cleaned = await run(host, "purgatory_cleanup")
        assert (await result_of(host, cleaned))["objects"] == {"rubin": 1}
    assert [path for path in host.config.objects.rglob("*.html") if "site" not in path.parts] == []


@pytest.mark.req("D101")
async def test_content_that_cannot_be_deleted_is_not_forgotten_and_keeps_no_other_from_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await condemned(host, "rubin", 31, 32, 33)
    unlink = os.unlink

    def refuse(path: Any, **given: Any) -> None:
        if path == "b.html" and "rubin/0" in str(Path(f"/proc/self/fd/{given['dir_fd']}").readlink()):
            raise PermissionError(13, "Permission denied")
        unlink(path, **given)

    monkeypatch.setattr(os, "unlink", refuse)
    org = await host.services.hosting.org("rubin")
    with pytest.raises(PermissionError):
        await host.services.purgatory.clean(org, batch=1)
    assert sql(host, "select object_prefix from docverse.purgatory") == [("purgatory/rubin/0",)]
    monkeypatch.undo()
    await host.services.purgatory.clean(org)
    assert sql(host, "select object_prefix from docverse.purgatory") == []
    assert await host.services.objects.objects("purgatory") == []


@pytest.mark.req("D101")
async def test_expired_content_is_deleted_in_batches(host: Host) -> None:
    await condemned(host, "rubin", 31, 32, 33, 34, 35)
    org = await host.services.hosting.org("rubin")
    batches: list[int] = []
    store, forget = host.services.purgatory._database, "forget_purgatory"

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def run(self, name: str, *args: Any) -> None:
            if name == forget:
                batches.append(len(args[0]))
            await store.run(name, *args)

    host.services.purgatory._database = Counting()  # type: ignore[assignment]
    assert await host.services.purgatory.clean(org, batch=2) == 10
    assert batches == [2, 2, 1]


def old_id(days: float) -> UUID:
    """An id of a job that was enqueued so long ago."""
    made = datetime.now(UTC) - timedelta(days=days)
    number = int(made.timestamp() * 1000) << 80 | secrets.randbits(80)
    return UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | 7 << 76 | 2 << 62)


@pytest.mark.req("D101", "D124", "D125", "D126")
async def test_records_of_ended_jobs_expire_in_every_state_and_answer_404(host: Host) -> None:
    for org in ("rubin", "other"):
        await host.add_org(org)
    sql(
        host,
        "update docverse.organization_credentials set encrypted_credential = 'unreadable'"
        " where org_id = (select id from docverse.organization where slug = 'other')",
    )
    expected = {
        "git_ref_audit": "completed", "credential_reencrypt": "completed_with_errors", "dashboard_sync": "failed",
        "lifecycle_eval": "cancelled",
    }  # fmt: skip
    expired: list[str] = []
    kept: list[str] = []
    async with host.working():
        for days, group in ((7.001, expired), (6.99, kept)):
            for kind, status in expected.items():
                payload = {"template_ids": [0]} if kind == "dashboard_sync" else {}
                delay = "1h" if status == "cancelled" else None
                handle = await host.jobs.enqueue(kind, payload, id=old_id(8), delay=delay)
                if status == "cancelled":
                    await handle.cancel()
                assert (await host.ended(handle.public_id))["status"] == status
                group.append(handle.public_id)
                moment = "clock_timestamp() - make_interval(secs => %s)"
                sql(
                    host,
                    f"update dutiful.finished set finished_at = {moment} where job_id = %s",
                    days * 86_400,
                    handle.id,
                )
                sql(
                    host,
                    f"update dutiful.dead_letter set died_at = {moment} where job_id = %s",
                    days * 86_400,
                    handle.id,
                )
        waiting = await host.jobs.enqueue("lifecycle_eval", delay="1h", id=old_id(8))

        cleaned = await run(host, "purgatory_cleanup")

        assert (await result_of(host, cleaned))["jobs"] == len(expired) == 4
        for job_id in expired:
            assert "expired" in (await host.call("GET", f"/queue/jobs/{job_id}", 404))["detail"]
        for job_id in (*kept, waiting.public_id, cleaned["public_id"]):
            await host.call("GET", f"/queue/jobs/{job_id}")
        letters = sql(host, "select job_id from dutiful.dead_letter where status = 'pending_review'")
        assert [public_ids.spell_job(job_id) for (job_id,) in letters] == [kept[2]], "no one reviews what has expired"


@pytest.mark.req("D124")
async def test_how_long_records_are_kept_is_configured(host: Host) -> None:
    short = replace(host.config, job_retention=timedelta(0))
    assert Config.read(short.environment()) == short and host.config.job_retention == timedelta(days=7)
    async with docverse_app(short).embedded(grace="5s"):
        ended = await run(host, "lifecycle_eval")
        await run(host, "purgatory_cleanup")
    await host.call("GET", f"/queue/jobs/{ended['public_id']}", 404)


@pytest.mark.req("D102", "D103", "D104")
async def test_credentials_are_rotated_to_the_newest_key_and_read_under_it_alone(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    (old,), new = host.config.fernet_keys, Fernet.generate_key().decode()
    for org in ("rubin", "other"):
        await host.add_org(org)
        credential = {"secret": f"{SECRET} of {org}"}
        headers = {"authorization": f"Bearer {host.config.superuser_token}"}
        await host.http.put(f"/orgs/{org}/credentials/github", json=credential, headers=headers)
    query = "select org_id, label, encrypted_credential from docverse.organization_credentials order by id"
    before = sql(host, query)
    async with docverse_app(replace(host.config, fernet_keys=(new, old))).embedded(grace="5s"):
        job = await run(host, "credential_reencrypt")
        after = sql(host, query)
        again = await run(host, "credential_reencrypt")
    twice = sql(host, query)

    assert await result_of(host, job) == await result_of(host, again) == {"rubin": 2, "other": 2}
    assert all(one[2] != two[2] for one, two in zip(before, after, strict=True)), "every row, unconditionally"
    alone, former = CredentialEncryptor((new,)), CredentialEncryptor((old,))
    plain = [former.decrypt(row[2]) for row in before]
    assert [alone.decrypt(row[2]) for row in after] == [alone.decrypt(row[2]) for row in twice] == plain
    told = [await host.jobs.snapshot(one["public_id"]) for one in (job, again)]
    shown = json.dumps([job, again, after], default=str) + repr(told) + caplog.text
    assert not any(secret in shown for secret in plain)


@pytest.mark.req("D102")
async def test_credentials_of_several_organizations_are_rotated_at_the_same_time(host: Host) -> None:
    for org in ("rubin", "other", "third"):
        await host.add_org(org)
    async with host.working(replaced(reencryption=lambda services: Together(services.reencryption, "reencrypt", 3))):
        assert (await run(host, "credential_reencrypt"))["status"] == "completed"


@pytest.mark.req("D104")
async def test_a_credential_that_no_key_reads_is_named_and_stops_no_other(host: Host) -> None:
    await host.add_org("rubin")
    await host.add_org("other")
    foreign = Fernet(Fernet.generate_key()).encrypt(b"of another host").decode()
    sql(
        host,
        "update docverse.organization_credentials set encrypted_credential = %s"
        " where org_id = (select id from docverse.organization where slug = 'other')",
        foreign,
    )
    new = Fernet.generate_key().decode()
    config = replace(host.config, fernet_keys=(new, *host.config.fernet_keys))
    async with docverse_app(config).embedded(grace="5s"):
        job = await run(host, "credential_reencrypt")

    assert job["status"] == "completed_with_errors"
    (error,) = job["errors"]
    assert error["item"] == "other" and "no configured key decrypts edge" in json.dumps(error)
    tokens = dict(
        sql(
            host,
            "select o.slug, c.encrypted_credential from docverse.organization_credentials c"
            " join docverse.organization o on o.id = c.org_id",
        )
    )
    assert tokens["other"] == foreign, "it is left as it was"
    CredentialEncryptor((new,)).decrypt(tokens["rubin"])


@pytest.mark.req("D103")
async def test_a_credential_that_is_replaced_meanwhile_is_not_overwritten(host: Host) -> None:
    await host.add_org()
    org = await host.services.hosting.org("rubin")
    service = host.services.reencryption
    encryptor = service._encryptor

    class Replacing:
        def rotate(self, token: str) -> str:
            sql(
                host,
                "update docverse.organization_credentials set encrypted_credential = %s",
                encryptor.encrypt("the newer one"),
            )
            return encryptor.rotate(token)

    service._encryptor = Replacing()  # type: ignore[assignment]
    assert await service.reencrypt(org) == 1
    assert await host.services.credentials.get(org.id, "edge") == "the newer one"
