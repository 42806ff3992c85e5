"""dashboard_sync: webhooks of GitHub, templates of repositories, and the dashboards rendered with them."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from docverse import CleanDocverse, Host, HostedProject, Json, hosting, installed
from docverse_parts import Held, PlainJob, watched
from docverse_upkeep import FailingStore, GitHub, Repository, Together, attempts, on_store, replaced, sql

from databases import Postgres
from examples.docverse import rendering
from examples.docverse.git_refs import GitRepositories

FOREVER = "{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def clean(postgres18: Postgres) -> Iterator[CleanDocverse]:
    with installed(postgres18) as clean:
        yield clean


@pytest.fixture
async def host(clean: CleanDocverse, tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(clean.reset(), tmp_path) as host:
        yield host


async def templated(host: Host, *projects: str) -> tuple[Repository, list[HostedProject]]:
    """An organization whose template is in the repository rubin/theme."""
    await host.add_org()
    await GitHub.enroll(host)
    hosted = [await host.add_project(slug=slug) for slug in projects]
    theme = Repository(host, "rubin/theme")
    theme.commit(dashboard_html="<h1>first {{ project.slug }}</h1>")
    return theme, hosted


async def track(host: Host, path: str = "/orgs/rubin/template", **given: str) -> Json:
    body = {"repository": "rubin/theme", **given}
    return await host.ended((await host.call("PUT", path, 202, json=body))["queue_job"])


@pytest.mark.req("D94", "D95")
async def test_a_push_copies_the_templates_and_renders_every_dashboard_of_the_organization(host: Host) -> None:
    theme, projects = await templated(host, "guide", "tutorial")
    await host.add_org("other")
    other = await host.add_project("other", "guide")
    async with host.working():
        assert (await track(host))["status"] == "completed"
        assert [await project.page("v/") for project in projects] == ["<h1>first guide</h1>", "<h1>first tutorial</h1>"]
        theme.commit(dashboard_html="<h1>second {{ project.slug }}</h1>")

        job = await GitHub(host).push("rubin/theme")
        ended = await host.ended(job)

        assert (ended["kind"], ended["status"], ended["project_id"]) == ("dashboard_sync", "completed", None)
        assert [await project.page("v/") for project in projects] == [
            "<h1>second guide</h1>", "<h1>second tutorial</h1>",
        ]  # fmt: skip
        assert "second" not in await other.page("v/", 404)
    (row,) = sql(host, "select object_prefix, commit_sha from docverse.dashboard_template")
    copied = await host.services.objects.objects(row[0])
    assert [info.key for info in copied] == [f"{row[0]}/dashboard.html"] and row[1] in row[0]


@pytest.mark.req("D95")
async def test_an_override_renders_its_own_project_only(host: Host) -> None:
    theme, (guide, tutorial) = await templated(host, "guide", "tutorial")
    own = Repository(host, "rubin/own")
    own.commit(dashboard_html="own one")
    async with host.working():
        await track(host)
        await track(host, "/orgs/rubin/projects/guide/template", repository="rubin/own")
        before = sql(host, "select count(*) from docverse.queue_job")
        own.commit(dashboard_html="own two")
        theme.commit(dashboard_html="unseen")  # its push is not reported

        job = await GitHub(host).push("rubin/own")
        ended = await host.ended(job)

        assert ended["project_id"] is not None and before != sql(host, "select count(*) from docverse.queue_job")
        assert ended["progress"]["projects_completed"] == ["guide"], "the others would look the same"
        assert await guide.page("v/") == "own two"
        assert await tutorial.page("v/") == "<h1>first tutorial</h1>"


class InTurn(PlainJob):
    """Its locks exclude; `waits` is set when one of them has to be waited for."""

    locks: ClassVar[defaultdict[tuple[str, int], asyncio.Lock]] = defaultdict(asyncio.Lock)

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()

    @asynccontextmanager
    async def _lock(self, namespace: str, key: int) -> AsyncIterator[None]:
        lock = self.locks[namespace, key]
        if lock.locked():
            self.waits.set()
        async with lock:
            yield


@pytest.mark.req("D49", "D94")
async def test_of_two_syncs_the_last_one_has_the_newest_commit(host: Host) -> None:
    theme, _ = await templated(host)
    await host.call("PUT", "/orgs/rubin/template", 202, json={"repository": "rubin/theme"})
    ((template,),) = sql(host, "select id from docverse.dashboard_template")
    held, job = Held("put", "/dashboard.html"), InTurn()
    async with watched(held)(host.config, lambda connection: None) as services:
        first = asyncio.create_task(services.dashboard_sync.sync([template], InTurn()))
        await held.reached.wait()  # it has read the first commit
        theme.commit(dashboard_html="<h1>second</h1>")
        second = asyncio.create_task(services.dashboard_sync.sync([template], job))
        waiting = asyncio.create_task(job.waits.wait())
        await asyncio.wait([second, waiting], return_when=asyncio.FIRST_COMPLETED)
        held.released.set()
        (older,), (newer,) = await first, await second
        waiting.cancel()
    assert older != newer
    assert sql(host, "select commit_sha from docverse.dashboard_template") == [(newer,)]


@pytest.mark.req("D5", "D95")
async def test_a_push_to_the_template_of_an_organization_and_of_a_project_is_one_job(host: Host) -> None:
    theme, (guide, tutorial) = await templated(host, "guide", "tutorial")
    async with host.working():
        await track(host)
        await track(host, "/orgs/rubin/projects/guide/template")
        before = len(list(await host.jobs.jobs()))
        theme.commit(dashboard_html="<h1>second {{ project.slug }}</h1>")

        ended = await host.ended(await GitHub(host).push("rubin/theme"))

        assert (ended["status"], ended["project_id"]) == ("completed", None)
        assert len(list(await host.jobs.jobs())) == before + 1
        shown = [await one.page("v/") for one in (guide, tutorial)]
        assert shown == ["<h1>second guide</h1>", "<h1>second tutorial</h1>"]
        assert sorted(ended["progress"]["projects_completed"]) == ["guide", "tutorial"], "each was rendered once"


@pytest.mark.req("D96")
async def test_dashboards_of_several_projects_are_rendered_at_the_same_time(host: Host) -> None:
    await templated(host, "guide", "tutorial", "manual")

    opened = replaced(dashboard_sync=lambda services: Together(services.dashboard_sync, "render", 3))
    async with host.working(opened):
        assert (await track(host))["status"] == "completed"


async def test_a_delivery_that_comes_again_enqueues_nothing(host: Host) -> None:
    await templated(host, "guide")
    async with host.working():
        await track(host)
        first = await GitHub(host).push("rubin/theme", delivery="the-same")
        again = await GitHub(host).push("rubin/theme", delivery="the-same")
        await host.ended(first)
    assert again == ""


async def test_only_pushes_to_tracked_refs_start_a_sync(host: Host) -> None:
    await templated(host, "guide")
    async with host.working():
        await track(host)
        github = GitHub(host)
        assert await github.push("rubin/elsewhere") == ""
        assert await github.push("rubin/theme", "refs/heads/draft") == ""
        assert await github.push("rubin/theme", event="ping") == ""
        assert await github.push("rubin/theme", body={"deleted": True}) == ""


async def test_a_delivery_that_is_not_signed_by_the_organization_is_refused(host: Host) -> None:
    await templated(host, "guide")
    await host.add_org("other")
    body = json.dumps({"ref": "refs/heads/main", "repository": {"full_name": "rubin/theme"}}).encode()
    github = GitHub(host)
    refused = [
        await GitHub(host, "another secret, also long").send("rubin", body),
        await github.send("other", body),  # it has no secret
        await github.send("nowhere", body),
        await github.send("rubin", body, **{"x-hub-signature-256": ""}),
        await github.send("rubin", body, **{"x-hub-signature-256": "sha256=" + "0" * 64}),
        await github.send("rubin", body, **{"x-hub-signature-256": "sha1=" + "0" * 40}),
    ]
    assert {(answer.status_code, answer.json()["detail"]) for answer in refused} == {
        (401, "the signature in X-Hub-Signature-256 is missing or wrong")
    }
    assert (await github.send("rubin", b" " * 1_000_001)).status_code == 413
    assert sql(host, "select count(*) from docverse.queue_job") == [(0,)]
    assert sql(host, "select count(*) from docverse.github_delivery") == [(0,)]


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b"not json", "repository.full_name and ref"),
        (b"[]", "repository.full_name and ref"),
        (b'{"ref": 7, "repository": {"full_name": "rubin/theme"}}', "repository.full_name and ref"),
        (b'{"ref": "refs/heads/--upload-pack=x", "repository": {"full_name": "rubin/theme"}}', "git_ref"),
        (b'{"ref": "refs/heads/main", "repository": {"full_name": "../../etc"}}', "repository"),
        (b'{"ref": "refs/heads/main", "repository": {"full_name": 7}}', "repository.full_name is no text"),
    ],
)
async def test_a_signed_body_that_is_no_push_is_refused(host: Host, body: bytes, reported: str) -> None:
    await templated(host, "guide")
    answer = await GitHub(host).send("rubin", body)
    assert answer.status_code == 422 and reported in answer.json()["detail"]


@pytest.mark.parametrize(
    ("files", "reported"),
    [
        ({"dashboard_html": "{% if %}"}, "dashboard.html, line 1"),
        ({"readme_md": "nothing"}, "has no template"),
        ({"dashboard_html": "x" * 1_000_001}, "over 1,000,000 bytes"),
        ({"dashboard_html": "{{ 1 // 0 }}"}, "ZeroDivisionError"),
        ({"404_html": f"{{% for a in range(99999) %}}{FOREVER}{{% endfor %}}"}, "took over 1 s"),
        ({"dashboard_html": "{{ 'x' * 5_000_000 }}"}, "over 4,000,000 bytes"),
        ({"dashboard_html": "{{ ('x' * 10 ** 10) | length }}"}, "MemoryError"),
        ({"dashboard_html": "{{ '\\ud800' }}"}, "UnicodeEncodeError"),
        ({"dashboard_html": "{{ ''.__class__.__mro__ }}"}, "SecurityError"),
    ],
)
async def test_a_template_that_cannot_be_rendered_changes_no_dashboard(
    host: Host, files: dict[str, str], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 1)
    theme, (guide,) = await templated(host, "guide")
    async with host.working():
        await track(host)
        theme.git("rm", "--quiet", "dashboard.html")
        theme.commit(**files)
        job = await GitHub(host).push("rubin/theme")
        ended = await host.ended(job)
        assert ended["status"] == "failed" and reported in json.dumps(ended["errors"])
        assert await attempts(host, ended) == 1, "trying again would not help"
        assert await guide.page("v/") == "<h1>first guide</h1>"


async def test_a_folder_that_is_no_template_is_refused_before_its_files_are_read(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    git = GitRepositories._git

    async def noted(self: GitRepositories, repository: str, *command: str) -> bytes:
        commands.append(command[0])
        return await git(self, repository, *command)

    monkeypatch.setattr(GitRepositories, "_git", noted)
    theme, _ = await templated(host, "guide")
    theme.commit(**{f"page{number}_html": "x" for number in range(100)})
    async with host.working():
        job = await track(host)
    assert (job["status"], "has 101 files" in json.dumps(job["errors"])) == ("failed", True)
    assert commands == ["for-each-ref", "ls-tree"]


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"repository": "../secrets"}, "repository"),
        ({"repository": "-rubin"}, "repository"),
        ({"git_ref": "--output=x"}, "git_ref"),
        ({"path": "../other"}, "path"),
    ],
)
async def test_a_template_that_git_could_misread_is_not_tracked(
    host: Host, given: dict[str, str], reported: str
) -> None:
    await host.add_org()
    refused = await host.call("PUT", "/orgs/rubin/template", 422, json={"repository": "rubin/theme", **given})
    assert reported in refused["detail"]
    assert sql(host, "select count(*) from docverse.dashboard_template") == [(0,)]


@pytest.mark.req("D127")
@pytest.mark.parametrize(("times", "status"), [(2, "completed"), (3, "failed")])
async def test_a_sync_is_tried_three_times(host: Host, times: int, status: str) -> None:
    await templated(host, "guide")
    async with host.working(on_store(FailingStore(host.config.objects, "templates", times))):
        ended = await track(host)
        assert (ended["status"], await attempts(host, ended)) == (status, 3)
