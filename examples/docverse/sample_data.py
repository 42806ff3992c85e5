"""Sample documentation: a few linked pages, and the git repository that they come from."""

import os
import subprocess
from pathlib import Path

STYLE = """body { font: 1rem/1.6 system-ui, sans-serif; max-width: 45rem; margin: 2rem auto; padding: 0 1rem; }
nav { display: flex; gap: 1rem; justify-content: space-between; padding-bottom: .5rem; border-bottom: 1px solid #ccc; }
footer { margin-top: 3rem; color: #62707f; }
"""
# Each edition offers the others, as the switcher of its project lists them at that moment.
SWITCHER = """const select = document.querySelector("nav select");
const editions = await (await fetch(select.dataset.editions)).json();
for (const edition of editions) {
  const here = new URL(edition.url).pathname;
  const shown = edition.preferred ? !location.pathname.includes("/v/") : location.pathname.startsWith(here);
  select.add(new Option(edition.name, edition.url, shown, shown));
}
select.addEventListener("change", () => location.assign(select.value));
"""


def pages(title: str, version: str) -> dict[str, str]:
    """A small site whose every page says which version it is."""

    def page(heading: str, body: str) -> str:
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<link rel="icon" href="data:,"><link rel="stylesheet" href="style.css">'
            '<script type="module" src="switcher.js"></script>'
            f'<nav><a href="/{title}/v/">All editions</a>'
            f'<select aria-label="Edition" data-editions="/{title}/__switcher.json"></select></nav>'
            f"<h1>{heading}</h1><p>{body}</p><footer>{title}, {version}</footer></html>"
        )

    return {
        "index.html": page(title, 'Start with <a href="install.html">the installation</a>.'),
        "install.html": page("Installation", 'Back to <a href="index.html">the first page</a>.'),
        "style.css": STYLE,
        "switcher.js": SWITCHER,
    }


TEMPLATE = """<!doctype html>
<title>{{ project.title }}</title>
<h1>By the house's own template</h1>
<ul>{% for edition in editions %}<li><a href="{{ edition.url }}">{{ edition.slug }}</a>{% endfor %}</ul>
"""


def make_repository(folder: Path, branches: list[str]) -> None:
    """A bare repository with one commit, which all the branches have: a template of dashboards."""
    folder.mkdir(parents=True)
    _git(folder, "init", "--bare", "--quiet")
    blob = _git(folder, "hash-object", "-w", "--stdin", given=TEMPLATE)
    tree = _git(folder, "mktree", given=f"100644 blob {blob}\tdashboard.html\n")
    commit = _git(folder, "commit-tree", tree, "-m", "Begin")
    for branch in branches:
        _git(folder, "update-ref", f"refs/heads/{branch}", commit)


def delete_branch(folder: Path, branch: str) -> None:
    _git(folder, "update-ref", "-d", f"refs/heads/{branch}")


def _git(folder: Path, *command: str, given: str = "") -> str:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "Ada", f"GIT_{who}_EMAIL": "ada@example.org"}
    return subprocess.run(
        ["git", "-C", folder, *command], env=environment, input=given, capture_output=True, text=True, check=True
    ).stdout.strip()
