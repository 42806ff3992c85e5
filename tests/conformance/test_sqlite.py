import pytest

from suite import add_tests
from suite.leadership import LeadershipSuite
from suite.locks import LockSessionSuite
from suite.workers import WorkerSuite

pytestmark = pytest.mark.parametrize("backend", ["sqlite"])


class TestLeadership(LeadershipSuite):
    one_leader = False


class TestWorker(WorkerSuite):
    sees_processes = True


add_tests(globals(), without=[LockSessionSuite])  # locks are rows here
