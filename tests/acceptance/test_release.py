"""A release is published only after the verification has passed."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS, COLLECTING = "-m pytest -m", "-m pytest --collect-only"
CHECKS = ("ruff check", "ruff format", "lint-imports", "mypy")
TOOLS = ("python", "ruff", "mypy", "lint-imports")


def run_release(folder: Path, *, broken: str | None) -> tuple[int, list[str]]:
    """`make release` with tools that only write down how they were called; those called with `broken` fail."""
    diary, tools = folder / "diary", folder / "venv" / "bin"
    tools.mkdir(parents=True)
    for name in TOOLS:
        tool = tools / name
        failing = f'case "{name} $*" in *"{broken or "nothing at all"}"*) exit 1;; esac'
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >> {diary}\n{failing}\n')
        tool.chmod(0o755)
    (folder / "venv" / ".ready").touch()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-C", str(folder), "-f", str(ROOT / "Makefile"), "release", f"VENV={folder / 'venv'}"]
    (folder / "pyproject.toml").touch()
    os.utime(folder / "pyproject.toml", (0, 0))  # older than the venv, which is ready
    code = subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode
    return code, diary.read_text().splitlines()


@pytest.mark.req("J87")
def test_it_is_built_and_uploaded_after_every_check(tmp_path: Path) -> None:
    code, called = run_release(tmp_path, broken=None)
    assert code == 0
    checks, steps = CHECKS, (TESTS, "-m build", "-m twine upload")
    at = {step: next(n for n, call in enumerate(called) if step in call) for step in (*checks, *steps)}
    assert max(at[check] for check in checks) < at[TESTS] < at["-m build"] < at["-m twine upload"]


@pytest.mark.req("J87")
@pytest.mark.parametrize("broken", [*CHECKS, COLLECTING, TESTS])
def test_nothing_is_published_if_a_check_fails(tmp_path: Path, broken: str) -> None:
    code, called = run_release(tmp_path, broken=broken)
    assert code != 0
    assert any(broken in call for call in called)
    assert not any("twine" in call or "-m build" in call for call in called)
