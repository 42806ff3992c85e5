"""The servers of tests, of which several processes start some side by side."""

import random
import subprocess
import sys

import pytest

from servers import free_port

OTHER_PROCESS = """
import random, sys
sys.path.append("tests")
import servers
numbers = iter([{taken}, {taken}, {free}])
random.SystemRandom.randrange = lambda self, *between: next(numbers)
print(servers.free_port())
"""


def test_a_port_is_given_to_one_process_even_if_its_server_is_not_up_yet(pytestconfig: pytest.Config) -> None:
    taken = free_port()
    free = random.SystemRandom().randrange(15_000, 20_000)
    code = OTHER_PROCESS.format(taken=taken, free=free)
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=60
    )
    assert other.stdout == f"{free}\n", other.stderr
