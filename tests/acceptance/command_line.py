"""A project in a directory of its own, and the real command run in it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import pytest

from dutiful.cli import main

JOBS = """
from dutiful import Dutiful, Retry

app = Dutiful()
not_an_app = 1

@app.job(retry=Retry(max_attempts=3))
async def greet(name: str, times: int = 1) -> str:
    return " ".join([f"Hello {name}"] * times)

@app.job(queue="fast", retry=Retry(max_attempts=1))
def explode() -> None:
    raise ValueError("oops")

app.schedule(greet, every="1h", name="hourly", payload={"name": "Ada"})
"""


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Project:
    folder: Path
    url: str
    fresh: bool = False  # whether commands are started in a new interpreter, instead of forked from a ready one

    def write_jobs(self) -> "Project":
        (self.folder / "jobs.py").write_text(JOBS)
        return self

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}
        return kept | {"DUTIFUL_APP": "jobs:app", "DUTIFUL_DATABASE_URL": self.url, "NO_COLOR": "1"} | more

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "dutiful.cli", *args]

    def run(self, *args: str, stdin: str | None = None, **environment: str) -> Answer:
        run = self._run_fresh if self.fresh else forked.run
        answer = Answer(*run(args, self.folder, self.environment(**environment), stdin or ""))
        assert "Traceback (most recent call last)" not in answer.err, answer.err
        return answer

    def _run_fresh(
        self, args: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: str
    ) -> tuple[int, str, str]:
        done = subprocess.run(
            self.command(*args),
            cwd=folder,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=forked.DEADLINE_S,
        )
        return done.returncode, done.stdout, done.stderr

    def call(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> Answer:
        """The same without a process of its own, where many small cases would each cost its start."""
        monkeypatch.chdir(self.folder)
        monkeypatch.delitem(sys.modules, "jobs", raising=False)
        monkeypatch.setattr(sys, "path", [str(self.folder), *sys.path])
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)
        code = main(args)
        out, err = capsys.readouterr()
        return Answer(code, out, err)
