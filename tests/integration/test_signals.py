"""Child processes of tests start with default signal dispositions, however the test run was started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
CHILD = """
import os, sys
from pathlib import Path
import conftest
from faults import Process
process = Process(["cat", "/proc/self/status"], os.environ, Path(sys.argv[1]))
process._process.wait()
print(process.output)
"""


def test_children_do_not_inherit_the_signals_that_a_background_shell_ignores(tmp_path: Path) -> None:
    status = _status_of_a_child("trap '' HUP INT QUIT TERM", tmp_path)

    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
    assert [number for number in SIGNALS if ignored >> (number - 1) & 1] == []


def _status_of_a_child(shell: str, folder: Path) -> str:
    """/proc/PID/status of a process that a test would start after `shell` has started the tests."""
    command = ["sh", "-c", f'{shell}; exec "$@"', "sh", sys.executable, "-c", CHILD, str(folder / "child.log")]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
