"""Sample documentation: a few linked pages, and the git repository that they come from."""

import subprocess
from pathlib import Path

STYLE = "body { font: 1rem/1.6 system-ui, sans-serif; max-width: 45rem; margin: 2rem auto; padding: 0 1rem; }"


def pages(title: str, version: str) -> dict[str, str]:
    """A small site whose every page says which version it is."""

    def page(heading: str, body: str) -> str:
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>'
            f'<link rel="stylesheet" href="style.css"><h1>{heading}</h1><p>{body}</p>'
            f"<footer>{title}, {version}</footer></html>"
        )

    return {
        "index.html": page(title, 'Start with <a href="install.html">the installation</a>.'),
        "install.html": page("Installation", 'Back to <a href="index.html">the first page</a>.'),
        "style.css": STYLE,
    }


def make_repository(folder: Path, branches: list[str]) -> None:
    """A bare repository with a commit that all the branches have."""
    folder.mkdir(parents=True)

    def git(*command: str, given: str = "") -> str:
        environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CONFIG_GLOBAL": "/dev/null"}
        for who in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{who}_NAME": "Ada", f"GIT_{who}_EMAIL": "ada@example.org"}
        return subprocess.run(
            ["git", "-C", folder, *command], env=environment, input=given, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "--bare", "--quiet")
    tree = git("mktree")
    commit = git("commit-tree", tree, "-m", "Begin")
    for branch in branches:
        git("update-ref", f"refs/heads/{branch}", commit)
