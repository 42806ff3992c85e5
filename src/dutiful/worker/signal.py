"""What a handler raises to speak of its whole job: told apart from what has merely gone wrong, also inside a group."""

from dutiful.core.classify import leaves
from dutiful.core.errors import BreakerOpen, ClaimLost, JobCancelled, LockLost
from dutiful.core.outcome import Cancel, Snooze, TimeoutExceeded

_OF_THE_JOB = (Cancel, Snooze, BreakerOpen, ClaimLost, LockLost)
# Of a job that nobody has told to stop, they speak of another one, whose result it waited for.
_STOPS = (JobCancelled, TimeoutExceeded)


def of_the_job(error: BaseException, *, told_to_stop: bool = False) -> BaseException | None:
    """`error`, or the first one in the group that it is, if that speaks of the job."""
    signals = (*_OF_THE_JOB, *_STOPS) if told_to_stop else _OF_THE_JOB
    errors = leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return next((one for one in errors if isinstance(one, signals)), None)
