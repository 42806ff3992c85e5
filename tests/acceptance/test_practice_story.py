"""The example practice runs its story, on both databases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.req("W1", "W2", "W46", "W47", "W48", "W54", "W62", "W67", "W68")
def test_the_story_ends_by_itself_and_adds_up(app_url: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}
    where = ["--database-url", app_url] if app_url.startswith("postgres") else []
    command = [sys.executable, "-m", "examples.practice", *where]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("✓") == 13 and "✗" not in done.stdout
