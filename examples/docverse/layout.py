"""Where things are in the object store and at the edge."""

from dataclasses import dataclass

MAIN = "__main"  # the slug of the edition that a project shows at its root


@dataclass(frozen=True)
class Layout:
    """The keys of one project."""

    org: str
    project: str

    @property
    def root(self) -> str:
        return f"orgs/{self.org}/projects/{self.project}"

    def build(self, public_id: str) -> str:
        return f"{self.root}/builds/{public_id}"

    def edition(self, slug: str) -> str:
        """Its copy of a build, in copy mode."""
        return f"{self.root}/editions/{slug}"

    def file(self, name: str) -> str:
        return f"{self.root}/site/{name}"

    @property
    def dashboard(self) -> str:
        return self.file("__dashboard.html")

    @property
    def not_found(self) -> str:
        return self.file("__404.html")

    @property
    def switcher(self) -> str:
        return self.file("__switcher.json")

    def metadata(self, slug: str) -> str:
        return self.file(f"__editions/{slug}.json")

    # Paths at the edge, below that of the organization.
    def edition_path(self, slug: str) -> str:
        return f"{self.project}/v/{slug}"


def pointer_key(org: str, project: str, slug: str) -> str:
    return f"{org}/{project}/{slug}.json"


def template_prefix(org: str, project: str | None, commit: str) -> str:
    """The files of a dashboard template, as they were at a commit."""
    return f"orgs/{org}/templates/{project or '__org'}/{commit}"


def purgatory_prefix(org: str, name: str) -> str:
    return f"purgatory/{org}/{name}"


def folders_of(key: str) -> set[str]:
    """The folders that a key is in, by their paths."""
    return {key[:at] for at, letter in enumerate(key) if letter == "/"}
