"""Rows of the host's tables, as services pass them on."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from examples.docverse import public_ids
from examples.docverse.layout import Layout


@dataclass(frozen=True)
class Org:
    id: int
    slug: str
    title: str
    publishing_mode: str
    rewrite_rules: list[dict[str, Any]]


@dataclass(frozen=True)
class Project:
    id: int
    slug: str
    title: str
    source_repository: str | None
    default_ref: str
    org: Org

    @property
    def layout(self) -> Layout:
        return Layout(self.org.slug, self.slug)


@dataclass(frozen=True)
class Build:
    id: int
    number: int  # as stored; `public_id` is how it is written
    project_id: int
    git_ref: str
    status: str
    object_prefix: str
    queue_job: Any
    date_created: datetime

    @property
    def public_id(self) -> str:
        return public_ids.spell(self.number)


@dataclass(frozen=True)
class Edition:
    id: int
    project_id: int
    slug: str
    title: str
    kind: str
    tracking_mode: str
    tracking_params: dict[str, Any]
    build_id: int | None
    fence: int


def org(row: Any) -> Org:
    return Org(row["org_id"], row["org_slug"], row["org_title"], row["publishing_mode"], row["rewrite_rules"])


def project(row: Any) -> Project:
    return Project(
        row["id"], row["slug"], row["title"], row["source_repository"], row["default_ref"], org(row)
    )  # fmt: skip


def build(row: Any) -> Build:
    return Build(
        row["id"], row["public_id"], row["project_id"], row["git_ref"], row["status"], row["object_prefix"],
        row["queue_job"], row["date_created"],
    )  # fmt: skip


def edition(row: Any) -> Edition:
    return Edition(
        row["id"], row["project_id"], row["slug"], row["title"], row["kind"], row["tracking_mode"],
        row["tracking_params"], row["build_id"], row["fence"],
    )  # fmt: skip
