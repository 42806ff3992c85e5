"""The register of sports sites tells its story."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.req(
    "L1", "L2", "L3", "L5", "L6", "L7", "L8", "L36", "L40", "L48", "L56", "L58", "L69", "L70", "L71", "L72"
)
@pytest.mark.req("L80", "L85", "L87", "L89", "L92", "L93", "L97", "L98", "L102")
def test_the_story_ends_by_itself_and_adds_up(app_url: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}
    command = [sys.executable, "-m", "examples.sports_sites", "--database-url", app_url]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("✓") == 10 and "✗" not in done.stdout
