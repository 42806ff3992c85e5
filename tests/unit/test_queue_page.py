"""One page of jobs in several states, merged from a page of each."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from dutiful.core.states import State
from dutiful.operator import Operator
from dutiful.store.queries import JobFilter, JobPage
from dutiful.web.api.jobs import in_states


class Jobs:
    """Jobs by number; a search for failed ones covers `stretch` numbers at a time."""

    def __init__(self, stretch: int, **numbers: list[int]) -> None:
        self._numbers = {State(state): of for state, of in numbers.items()}
        self._stretch = stretch

    async def search(self, wanted: JobFilter) -> JobPage:
        assert wanted.state is not None
        high = wanted.before.int if wanted.before else 100
        low = max(0, high - self._stretch) if wanted.state is State.FAILED else 0
        there = sorted((n for n in self._numbers[wanted.state] if low <= n < high), reverse=True)
        found = there[: wanted.limit]
        end = found[-1] if len(there) > len(found) else low
        return JobPage([cast(Any, SimpleNamespace(id=UUID(int=n))) for n in found], UUID(int=end) if end else None)


async def test_no_job_is_left_out_when_one_state_is_searched_in_stretches() -> None:
    operator = cast(Operator, SimpleNamespace(jobs=Jobs(20, failed=[90, 50, 10], completed=[95, 60, 40, 5])))
    listed, before = [], None
    while True:
        wanted = JobFilter(limit=3, before=before)
        page = await in_states(operator, wanted, [State.FAILED, State.COMPLETED])
        listed += [job.id.int for job in page]
        before = page.next
        if before is None:
            break
    assert listed == [95, 90, 60, 50, 40, 10, 5]
