"""The suites of claims through the published SQL functions: jobs that they claim are fenced as those of workers."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from databases import CleanDatabase
from dutiful.store import Store
from sql_door import DoorStore
from suite import add_tests
from suite.claims import ClaimSuite
from suite.claims_fencing import ClaimFencingSuite
from suite.claims_leases import ClaimLeaseSuite
from suite.claims_order import ClaimOrderSuite
from suite.claims_races import ClaimRaceSuite
from suite.claims_refusals import ClaimRefusalSuite
from suite.claims_settle import ClaimSettleSuite

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=["postgres18", "postgres16"])
def database(request: pytest.FixtureRequest) -> CleanDatabase:
    clean: CleanDatabase = request.getfixturevalue(str(request.param).replace("postgres", "clean"))
    return clean


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(database: CleanDatabase) -> AsyncIterator[Store]:
    store = DoorStore(database.reset())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, database: CleanDatabase) -> Store:
    database.reset(alone=False)
    return opened


def but(suite: type, *left_out: str) -> type:
    """A suite without the tests of what the functions do not have, by the beginnings of their names."""
    gone = [name for name in vars(suite) if name.removeprefix("test_").startswith(left_out)]
    assert len(gone) >= len(left_out) > 0
    return type(suite.__name__, (suite,), dict.fromkeys(gone))


add_tests(
    globals(),
    [
        # It searches all levels of a queue, from the first job on, and a suspect comes alone.
        but(
            ClaimSuite,
            "queue_levels_outside_the_request",
            "a_claim_begins_beyond_the_seq",
            "what_became_due_lately",
            "suspects_are_taken_besides_the_limit",
            "suspects_do_not_hide",
            "a_job_that_was_lost_with_its_worker_is_taken_only_as_a_suspect",
        ),
        # It decides itself that a job that was to live on is cancelled, as a worker does after that answer.
        but(ClaimFencingSuite, "a_job_with_a_cancel_request"),
        but(ClaimRefusalSuite, "a_release_does_not_forget"),
        but(ClaimLeaseSuite, "a_released_job_keeps_its_attempt"),  # a release leaves a record
        ClaimOrderSuite,
        ClaimRaceSuite,
        # It adds the class and the fingerprint of an error, and a record of a release.
        but(ClaimSettleSuite, "a_final_outcome_is_kept", "a_failed_attempt_is_recorded", "a_released_job_has"),
    ],
)
