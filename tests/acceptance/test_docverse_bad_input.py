"""The documentation host refuses bad input with a clear error, and writes nothing."""

import asyncio
import gzip
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bad_bodies import check_refusals
from docverse import SUPERUSER, Host, HostedProject

from examples.docverse.client import tarball
from examples.docverse.database import Database
from examples.docverse.services.hosting import Conflict, NotFound
from examples.docverse.storage.edge import org_token
from examples.docverse.storage.object_store import BadKey, DirectoryObjectStore
from examples.docverse.storage.tarball import BadTarball, Limits, unpack

pytest_plugins = ["docverse_fixtures"]


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """A tarball with a good page, and one more member."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("index.html"))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        archive.addfile(member)
    return packed.getvalue()


def _sparse(size: int) -> bytes:
    """A tarball whose only file is a hole of so many bytes, which no byte of the tarball stands for."""
    member = tarfile.TarInfo("hole.bin")
    sparse = {"major": "1", "minor": "0", "name": "hole.bin", "realsize": str(size)}
    member.pax_headers = {f"GNU.sparse.{name}": value for name, value in sparse.items()}
    extents = b"1\n%d\n0\n" % size
    member.size = 512
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(extents.ljust(512, b"\0")))
    return packed.getvalue()


def _with_checksum(packed: bytes, checksum: int) -> bytes:
    return packed[:-8] + checksum.to_bytes(4, "little") + packed[-4:]


def _after(header: bytes, times: int) -> bytes:
    """A tarball whose first file has so many such headers before its own."""
    return gzip.compress(header * times + gzip.decompress(tarball(PAGE)))


def _spoilt() -> bytes:
    """A tarball whose second header cannot be read."""
    plain = bytearray(gzip.decompress(tarball({**PAGE, "second.html": "x", "third.html": "x"})))
    plain[1024 + 148] ^= 1  # in the header's checksum
    return gzip.compress(plain)


PAGE = {"index.html": "x"}
LONG_NAME = tarfile.TarInfo("n" * 101).tobuf(tarfile.GNU_FORMAT)[:1024]
BAD = {
    "above its folder": (_member("../../escape.html"), "has an empty part, `.` or `..`"),
    "in the middle": (_member("a/../../escape.html"), "has an empty part, `.` or `..`"),
    "absolute": (_member("/etc/cron.d/x"), "is absolute"),
    "a backslash": (_member("..\\escape.html"), "a character that no key may have"),
    "an absolute link": (_member("a", tarfile.SYMTYPE, "/etc/passwd"), "is a link to '/etc/passwd'"),
    "a link upwards": (_member("a", tarfile.SYMTYPE, "../../secret"), "is a link to"),
    "a hard link": (_member("a", tarfile.LNKTYPE, "/etc/shadow"), "is a link to"),
    "a device": (_member("a", tarfile.CHRTYPE), "neither a file nor a folder"),
    "a pipe": (_member("a", tarfile.FIFOTYPE), "neither a file nor a folder"),
    "twice": (_member("index.html"), "is in the tarball twice"),
    "too long a name": (_member("x" * 201), "over 200 bytes"),
    "not packed": (b"<h1>no tarball</h1>", "not a whole .tar.gz"),
    "cut off": (tarball({"index.html": "x" * 5_000})[:60], "not a whole .tar.gz"),
    "without its last bytes": (tarball(PAGE)[:-8], "not a whole .tar.gz"),
    "another checksum": (_with_checksum(tarball(PAGE), 0), "CRC check failed"),
    "a header that is spoilt": (_spoilt(), "goes on after its end"),
    "two in one": (tarball(PAGE) + tarball({"second.html": "x"}), "goes on after its end"),
    "headers without end": (_after(LONG_NAME, 2_000), "not a whole .tar.gz"),
    "empty": (tarball({}), "has no file"),
    "a file that is a folder": (tarball({"a": "x", "a/b": "x"}), "as a file and as a folder"),
    "a folder that is a file": (tarball({"a/b": "x", "a": "x"}), "as a file and as a folder"),
    "a bomb of holes": (_sparse(3 * 1024**3), "is a sparse file"),
    "a bomb": (tarball({"zeros.bin": bytes(32 * 1024 * 1024)}), "100 times its size"),
}


async def test_a_bad_tarball_is_refused_and_leaves_no_object(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    for case, (body, why) in BAD.items():
        build = (await host.call("POST", f"{project.path}/builds", 201, json={"git_ref": "main"}))["id"]
        refused = await host.call("PUT", f"{project.path}/builds/{build}/content", 422, content=body)
        assert why in refused["detail"], case
        assert [path for path in host.config.objects.rglob("*") if path.is_file()] == [], case
        await host.call("PATCH", f"{project.path}/builds/{build}", 409, json={"status": "uploaded"})
    assert not list(await host.jobs.jobs())


async def test_an_upload_that_ends_after_the_build_was_deleted_leaves_nothing(host: Host, tmp_path: Path) -> None:
    await host.add_org()
    project = await host.add_project()
    owner = await host.services.hosting.project("rubin", "guide")
    build = await host.services.hosting.build(owner, await project.upload("main"))
    await host.services.objects.delete_prefix(build.object_prefix)
    await host.services.database.run("delete_build", build.id)  # as an orphan, while an upload is under way
    late = tmp_path / "late.tar.gz"
    late.write_bytes(tarball({"index.html": "late"}))

    with pytest.raises(Conflict, match="deleted meanwhile"):
        await host.services.hosting.upload(build, late, "digest")
    with pytest.raises(NotFound):
        await host.services.hosting.signal_uploaded(build, owner)

    assert [path for path in host.config.objects.rglob("*") if path.is_file()] == []
    assert not list(await host.jobs.jobs())


async def test_an_upload_that_ends_after_the_build_was_signalled_changes_nothing(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    path = f"{project.path}/builds"
    build = (await host.call("POST", path, 201, json={"git_ref": "main"}))["id"]
    signalled, begun = asyncio.Event(), asyncio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        late = tarball({"evil.html": "late"})
        yield late[:20]
        begun.set()
        await signalled.wait()
        yield late[20:]

    late = asyncio.create_task(host.call("PUT", f"{path}/{build}/content", 409, content=slow_body()))
    await begun.wait()
    await host.call("PUT", f"{path}/{build}/content", 201, content=tarball({"index.html": "good"}))
    await host.call("PATCH", f"{path}/{build}", 202, json={"status": "uploaded"})
    signalled.set()

    assert "make a new build" in (await late)["detail"]
    assert [path.name for path in host.config.objects.rglob("*") if path.is_file()] == ["index.html"]


def test_a_tarball_is_limited_in_files_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "content.tar.gz"
    file.write_bytes(tarball({f"{n}.html": "page" for n in range(11)}))
    with pytest.raises(BadTarball, match="over 10 files"):
        unpack(file, lambda name, data: None, Limits(objects=10))
    with pytest.raises(BadTarball, match="unpacks to over 0 MiB"):
        unpack(file, lambda name, data: None, Limits(unpacked=1_000))
    written: list[str] = []
    assert unpack(file, lambda name, data: written.append(name)) == len(written) == 11


def test_folders_count_as_files_do(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("a", "b", "c"):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        archive.addfile(tarfile.TarInfo("index.html"))
    file = tmp_path / "folders.tar.gz"
    file.write_bytes(packed.getvalue())
    assert unpack(file, lambda name, data: None, Limits(objects=4)) == 1
    with pytest.raises(BadTarball, match="over 3 files and folders"):
        unpack(file, lambda name, data: None, Limits(objects=3))


def test_a_header_that_claims_a_terabyte_is_not_waited_for(tmp_path: Path) -> None:
    header = tarfile.TarInfo("big")
    header.size = 1 << 40
    file = tmp_path / "claims.tar.gz"
    file.write_bytes(gzip.compress(header.tobuf() + b"x" * 1024))
    with pytest.raises(BadTarball, match="not a whole"):
        unpack(file, lambda name, data: None)


async def test_a_slug_with_markup_or_worse_is_refused(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    for slug in ("<script>", "a b", "..", "Über", "a/b", "-x", "", "x" * 61, "a\n"):
        for path, body in [
            ("/orgs", {"slug": slug, "title": "x"}),
            ("/orgs/rubin/projects", {"slug": slug, "title": "x"}),
            (f"{project.path}/editions", {"slug": f"{slug}<", "title": "x"}),
        ]:
            assert "slug" in str((await host.call("POST", path, 422, json=body))["detail"])


async def test_an_edition_whose_slug_is_taken_is_refused_and_the_first_one_stays(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    for slug, title in (("Preview", "First"), ("__main", "Guide")):
        body = {"slug": slug, "title": "Second", "git_ref": "other"}
        if slug != "__main":
            await host.call("POST", f"{project.path}/editions", 201, json={"slug": slug, "title": title})
        refused = await host.call("POST", f"{project.path}/editions", 409, json=body)
        assert f"there is an edition {slug} already" in refused["detail"]
        assert (await project.edition(slug))["title"] == title


@pytest.mark.req("D80")
@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"match": "u/*", "slug": "<script>"}, "slug may have letters"),
        ({"match": "u/*", "slug": "../*"}, "slug may have letters"),
        ({"match": "u/*", "slug": ""}, "slug may have letters"),
        ({"match": "u/*", "slug": "x" * 81}, "slug may have letters"),
        ({"match": "trunk", "slug": "__main"}, "slug may have letters"),
        ({"match": "u/*", "slug": "*-*"}, "only one"),
        ({"match": "u", "slug": "*"}, "only if match has one"),
        ({"match": "u/*", "slug": 7}, "either a slug or"),
        ({"match": "u/*", "slug": "u", "ignore": True}, "either a slug or"),
        ({"match": "u/*", "slug": "u", "ignore": "yes"}, "either a slug or"),
        ({"match": "u/*", "ignore": "yes"}, "either a slug or"),
        ({"match": "u/*"}, "either a slug or"),
        ({"match": "u/*", "slug": "u", "title": "U"}, "nothing else"),
        ({"match": "*/*", "slug": "u"}, "at most one *"),
        ({"slug": "u"}, "match must be"),
        ({"match": "--exec=*", "slug": "u"}, "match must be"),
        ({"match": "", "slug": "u"}, "match must be"),
    ],
)
async def test_a_rewrite_rule_that_cannot_hold_is_refused(host: Host, rule: dict[str, object], why: str) -> None:
    body = {"slug": "rubin", "title": "Rubin", "rewrite_rules": [{"match": "tickets/*", "slug": "*"}, rule]}
    refused = await host.call("POST", "/orgs", 422, json=body)
    assert why in refused["detail"] and str(rule) in refused["detail"]
    await host.call("POST", "/orgs/rubin/tokens", 404, json={"role": "admin"})


async def test_an_organization_or_project_that_is_lost_halfway_can_be_made_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Database.run

    async def lose(self: Database, name: str, *args: Any) -> None:
        if name in ("put_credential", "add_edition"):
            raise ConnectionError("the connection is gone")
        await run(self, name, *args)

    body = {"slug": "rubin", "title": "Rubin"}
    for path in ("/orgs", "/orgs/rubin/projects"):
        with monkeypatch.context() as lost:
            lost.setattr(Database, "run", lose)
            answer = await host.http.post(path, json=body, headers={"authorization": f"Bearer {SUPERUSER}"})
            assert answer.status_code == 500
        await host.call("POST", path, 201, json=body)
    project = HostedProject(host, "rubin", "rubin")
    async with host.working():
        assert (await project.publish("main"))[1]["status"] == "completed"


async def test_text_that_the_database_does_not_store_is_refused(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    for character in ("\0", "\ud800"):
        title = json.dumps(f"a{character}b")
        for path, body in [
            ("/orgs", f'{{"slug": "x", "title": {title}}}'),
            ("/orgs", f'{{"slug": "x", "title": "x", "rewrite_rules": [{{"match": {title}, "ignore": true}}]}}'),
            ("/orgs/rubin/projects", f'{{"slug": "x", "title": {title}}}'),
            (f"{project.path}/editions", f'{{"slug": "x", "title": {title}}}'),
        ]:
            detail = (await host.call("POST", path, 422, content=body))["detail"]
            assert ("rewrite" in str(detail)) if "rewrite" in body else (detail[0]["loc"] == ["body", "title"])
    host.http.headers["authorization"] = f"Bearer {SUPERUSER}"
    await check_refusals(host.http, "POST", "/orgs", {"slug": "x", "title": "x", "publishing_mode": "copy"})
    await check_refusals(host.http, "POST", f"{project.path}/builds", {"git_ref": "main"})
    await host.call("GET", f"{project.path}/editions/%00", 422)
    await host.call("GET", "/orgs/%00/projects/x", 422)
    await host.call("POST", "/orgs/x/projects", 404, json={"slug": "x", "title": "x"})


async def test_markup_in_titles_and_refs_is_shown_as_text(host: Host) -> None:
    await host.add_org()
    project = await host.add_project(slug="shown", title="<script>alert(1)</script>")
    async with host.working():
        await project.publish("main")
        for page in (await project.page("v/"), await project.page("none", 404)):
            assert "<script>" not in page and "&lt;script&gt;" in page


async def test_a_ref_or_repository_that_git_might_take_for_something_else_is_refused(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    for ref in ("--upload-pack=touch", "-x", "a..b", "a b", "a\n", "a/", "x.lock", "a@{1}", "$(id)"):
        for path, body in [
            (f"{project.path}/builds", {"git_ref": ref}),
            (f"{project.path}/editions", {"slug": "e", "title": "E", "git_ref": ref}),
            ("/orgs/rubin/projects", {"slug": "other", "title": "Other", "default_ref": ref}),
        ]:
            assert "git_ref" in (await host.call("POST", path, 422, json=body))["detail"]
    for name in ("../outside", "/etc", "--exec=x", "ext::sh -c id", "a//b"):
        body = {"slug": "p", "title": "P", "source_repository": name}
        assert "repository" in (await host.call("POST", "/orgs/rubin/projects", 422, json=body))["detail"]


async def test_another_organizations_project_and_builds_are_out_of_reach(host: Host) -> None:
    for org in ("rubin", "lsst"):
        await host.add_org(org)
    project = await host.add_project()
    build = await project.upload("main")
    stranger = (await host.call("POST", "/orgs/lsst/tokens", 201, json={"role": "admin"}))["token"]
    for method, path, body in [
        ("POST", f"{project.path}/builds", {"git_ref": "main"}),
        ("PATCH", f"{project.path}/builds/{build}", {"status": "uploaded"}),
        ("GET", f"{project.path}/builds/{build}", None),
        ("PATCH", f"{project.path}/editions/__main", {"build": build}),
        ("POST", "/orgs/lsst/projects/guide/builds", {"git_ref": "main"}),
        ("GET", f"/orgs/lsst/projects/guide/builds/{build}", None),
    ]:
        await host.call(method, path, 404, json=body, token=stranger)
    own = await host.add_project("lsst", "notes")
    await host.call("GET", f"{own.path}/builds/{build}", 404)
    await host.call("PATCH", f"{own.path}/editions/__main", 404, json={"build": build})
    assert not list(await host.jobs.jobs())


async def test_an_uploader_assigns_no_build_and_makes_no_project(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    uploader = (await host.call("POST", "/orgs/rubin/tokens", 201, json={"role": "uploader"}))["token"]
    build = await project.upload("main")
    await host.call("PATCH", f"{project.path}/editions/__main", 403, json={"build": build}, token=uploader)
    await host.call("POST", "/orgs/rubin/projects", 403, json={"slug": "x", "title": "x"}, token=uploader)
    await host.call("POST", "/orgs", 403, json={"slug": "x", "title": "x"}, token=uploader)


async def test_the_edge_takes_keys_from_their_own_organization_only_and_serves_nothing_outside(host: Host) -> None:
    headers = {"authorization": f"Bearer {org_token(host.config.edge_secret, 'lsst')}"}
    value = {"build": "b", "prefix": "orgs/rubin", "fence": 1}
    assert (await host.site.put("/_kv/rubin/guide/__main", json=value, headers=headers)).status_code == 403
    for key, content in (
        ("guide/%00", json.dumps(value)),
        ("guide/x", "NaN"),
        ("guide/x", "[" * 10_000),
        ("guide/x", "{}"),
    ):
        assert (await host.site.put(f"/_kv/lsst/{key}", content=content, headers=headers)).status_code == 422
    assert (await host.site.post("/_purge/rubin/guide", headers=headers)).status_code == 403
    (host.config.folder / "secret.txt").write_text("secret")
    for path in ("/rubin/guide/..%2f..%2f..%2f..%2fsecret.txt", "/rubin/%2e%2e/v/%2e%2e/secret.txt"):
        answer = await host.site.get(path)
        assert answer.status_code == 404 and "secret" not in answer.text


def test_a_key_cannot_leave_the_store(tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "objects")
    for key in ("../x", "/x", "a//b", "a/./b", "a/..", "", "a\0b", "a" * 901):
        with pytest.raises(BadKey):
            store.put_now(key, b"x")
    assert [path.name for path in tmp_path.rglob("*")] == ["objects", ".incoming"]


async def test_a_build_that_was_signalled_takes_no_other_content(host: Host) -> None:
    await host.add_org()
    project: HostedProject = await host.add_project()
    build = await project.upload("main")
    await project.signal(build)
    refused = await host.call("PUT", f"{project.path}/builds/{build}/content", 409, content=tarball({"x.html": "x"}))
    assert "make a new build" in refused["detail"]
    assert (await project.build(build))["status"] == "uploaded"
