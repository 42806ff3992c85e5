"""Tracking: which editions a build belongs to, by its git ref, their tracking modes and the rewrite rules."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from examples.docverse import records
from examples.docverse.database import Database
from examples.docverse.layout import MAIN
from examples.docverse.records import Build, Edition, Project

_RELEASE = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_UNFIT = re.compile(r"[^A-Za-z0-9.]+")
LONGEST_SLUG = 80
Version = tuple[int, int, int]


@dataclass(frozen=True)
class Wanted:
    """An edition that a build belongs to, whether it exists yet or not."""

    slug: str
    kind: str
    tracking_mode: str
    tracking_params: dict[str, Any] = field(default_factory=dict)


def version(git_ref: str) -> Version | None:
    """The version of a release tag; None for anything else, such as pre-releases."""
    found = _RELEASE.fullmatch(git_ref)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def slug_of(git_ref: str, rules: list[dict[str, Any]]) -> str | None:
    """The slug that the first matching rule gives; None if it says that the ref is ignored."""
    for rule in rules:
        before, star, after = str(rule["match"]).partition("*")
        if star:
            fits = git_ref.startswith(before) and git_ref.endswith(after) and len(git_ref) > len(before) + len(after)
            middle = git_ref[len(before) : len(git_ref) - len(after)] if fits else ""
        else:
            fits, middle = git_ref == before, git_ref
        if fits:
            return None if rule.get("ignore") else _fit(str(rule["slug"]).replace("*", middle))
    return _fit(git_ref)


def _fit(text: str) -> str:
    return _UNFIT.sub("-", text).strip("-.")[:LONGEST_SLUG] or "ref"


def wanted_editions(git_ref: str, project: Project, releases_before: list[str]) -> list[Wanted]:
    """Pure, so that a retry finds the same ones."""
    if git_ref == project.default_ref:
        return [Wanted(MAIN, "main", "main")]
    slug = slug_of(git_ref, project.org.rewrite_rules)
    if slug is None:
        return []
    own = version(git_ref)
    found = [Wanted(slug, "release" if own else "draft", "git_ref", {"git_ref": git_ref})]
    if own is None:
        return found
    # A fix of an old release, built after a newer release, does not lead the streams that have the newer one.
    earlier = [v for v in map(version, releases_before) if v is not None]
    major, minor, _ = own
    if all(v <= own for v in earlier if v[0] == major):
        found.append(Wanted(f"v{major}.x", "major", "semver_major", {"major": major}))
    if all(v <= own for v in earlier if v[:2] == (major, minor)):
        found.append(Wanted(f"v{major}.{minor}.x", "minor", "semver_minor", {"major": major, "minor": minor}))
    return found


class TrackingService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def evaluate(self, build: Build, project: Project) -> list[Edition]:
        """The editions to update; those that do not exist are created."""
        before = [row["git_ref"] for row in await self._database.all("releases_before", build.id)]
        wanted = wanted_editions(build.git_ref, project, before)
        for one in wanted:
            await self._create(project, one)
        # Those that an admin made for the ref are updated, too, also if it is the default one or rules ignore it.
        return await self._tracking(project, *wanted, Wanted("", "", "git_ref", {"git_ref": build.git_ref}))

    async def _create(self, project: Project, wanted: Wanted) -> None:
        """Creates an edition, unless there is one. Another job may do the same at this moment: the row decides."""
        # Another ref may have this slug: `a/b` and `a-b`, say.
        unlike = f"{wanted.slug}-{hashlib.sha256(repr(wanted).encode()).hexdigest()[:6]}"
        for slug in (wanted.slug, unlike):
            if await self._tracking(project, wanted):
                return
            title = project.title if wanted.slug == MAIN else wanted.tracking_params.get("git_ref", slug)
            await self._database.run(
                "add_edition", project.id, slug, title, wanted.kind, wanted.tracking_mode, wanted.tracking_params
            )

    async def _tracking(self, project: Project, *wanted: Wanted) -> list[Edition]:
        rows = await self._database.all("editions_of_project", project.id)
        return [edition for edition in map(records.edition, rows) if any(_tracks(edition, one) for one in wanted)]


def _tracks(edition: Edition, wanted: Wanted) -> bool:
    return (edition.tracking_mode, edition.tracking_params) == (wanted.tracking_mode, wanted.tracking_params)
