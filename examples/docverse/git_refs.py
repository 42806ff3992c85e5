"""Git repositories on this machine, read by the `git` command; projects name them relative to one folder."""

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 30.0
# What `git check-ref-format` allows, less the few characters that no one needs and shells dislike.
_REF = re.compile(r"(?!-)(?!.*(?:\.\.|//|/\.|@\{|\.lock(?:/|$)))[A-Za-z0-9._+@#-][A-Za-z0-9._+@#/-]{0,199}(?<![/.])")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class BadRef(ValueError):
    """A ref or repository that git might take for something else."""


class GitError(Exception):
    """Git could not read the repository."""


def is_ref(text: str) -> bool:
    return _REF.fullmatch(text) is not None


def check_ref(ref: str) -> str:
    if not is_ref(ref):
        raise BadRef(f"git_ref {ref[:80]!r} is not the name of a branch or tag, such as main or v1.2.0")
    return ref


def check_repository(name: str) -> str:
    if not _REPOSITORY.fullmatch(name) or len(name) > 200:
        raise BadRef(f"repository {name[:80]!r} is not a path below the folder of repositories, such as rubin/guide")
    return name


@dataclass(frozen=True)
class GitFile:
    path: str
    blob: str
    size: int


class GitRepositories:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def refs(self, repository: str) -> dict[str, str]:
        """Branches and tags by their short names, with the commit of each."""
        listed = await self._git(
            repository, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags"
        )
        found = {}
        for line in listed.decode(errors="replace").splitlines():
            name, _, commit = line.partition(" ")
            found[name.removeprefix("refs/heads/").removeprefix("refs/tags/")] = commit
        return found

    async def files(self, repository: str, commit: str, folder: str = "") -> list[GitFile]:
        """The files of a folder at a commit, as they are named below it; `read` has their contents."""
        root = f"{folder.strip('/')}/" if folder.strip("/") else ""
        listed = await self._git(repository, "ls-tree", "-r", "-l", "-z", "--full-tree", check_ref(commit))
        found = []
        for entry in listed.decode(errors="replace").split("\0")[:-1]:
            about, _, path = entry.partition("\t")
            mode, _, blob, size = about.split()
            if path.startswith(root) and mode in ("100644", "100755"):  # no links, no submodules
                found.append(GitFile(path.removeprefix(root), blob, int(size)))
        return found

    async def read(self, repository: str, file: GitFile) -> bytes:
        return await self._git(repository, "cat-file", "blob", file.blob)

    async def _git(self, repository: str, *command: str) -> bytes:
        path = self._folder / check_repository(repository)
        # No hook, alias or helper of the repository or the user is run.
        environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        process = await asyncio.create_subprocess_exec(
            "git", "--no-optional-locks", "-c", "safe.directory=*", "-C", path, *command,
            env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TIMEOUT):
                out, errors = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise
        if process.returncode:
            # Members of an organization see it, and nothing of the host.
            why = errors.decode(errors="replace").replace(f"{self._folder}/", "").strip()
            raise GitError(f"git {command[0]} in {repository}: {why[:300]}")
        return out
