"""All exceptions; each message says what to do next."""

import copyreg
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple
from uuid import UUID


class DutifulError(Exception):
    """The base of every error that Dutiful raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickles without a call of __init__, whose parameters differ from `args`.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class UsageError(DutifulError):
    """The caller made a mistake, so a retry without a change will not help."""


class FieldError(NamedTuple):
    """What is wrong with one field of a payload; it never contains the value."""

    field: str  # its path: `account.owner`, `items[3]`; `payload` for the whole
    problem: str

    def __str__(self) -> str:
        return f"{self.field} {self.problem}"


class PayloadInvalid(UsageError):
    """A payload does not fit its kind; `field` is the path of the wrong field, if there is only one.

    `errors` are all errors that were found.
    """

    def __init__(self, message: str, field: str | None = None, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(message)
        self.field = field
        self.errors = tuple(errors) or (FieldError(field or "payload", message),)


class UnknownKind(UsageError):
    """No kind of this name is registered with the app."""

    field: ClassVar = "kind"


class MalformedId(UsageError):
    """The text is not the spelling of any job's id."""


class KeysMissing(UsageError):
    """An encrypted kind, or what is sealed, needs keys, and this process has none."""


class UnknownDependency(UsageError):
    """A job is to depend on one that does not exist."""

    def __init__(self, message: str, job_id: UUID) -> None:
        super().__init__(message)
        self.job_id = job_id


class UniqueConflict(DutifulError):
    """Another job holds the unique key; `existing` is its id."""

    def __init__(self, message: str, existing: UUID) -> None:
        super().__init__(message)
        self.existing = existing


class JobNotFound(DutifulError):
    """There is no such job: it never existed, retention has deleted it, or it belongs to another tenant."""


class DeadLetterNotFound(DutifulError):
    """There is no such dead letter: its job did not fail, it was deleted, or it belongs to another tenant."""


class BulkRunNotFound(DutifulError):
    """There is no such bulk run, or it belongs to another tenant."""


class PostNotFound(DutifulError):
    """There is no such webhook message, or it has not ended."""


class NotAllowed(DutifulError):
    """The principal may not do or see this; nothing was changed."""


class IllegalTransition(DutifulError):
    """The state of a job or dead letter does not allow this action; nothing was changed."""


class StoreUnavailable(DutifulError):
    """The database did not answer; the call may be tried again."""


class StoreBusy(StoreUnavailable):
    """Another transaction holds a lock for longer than the call waits for it."""


class StoreAway(StoreUnavailable):
    """The database does not answer, or is full: what waits for it continues when it is back."""


class BackendAway(DutifulError):
    """The broker does not answer, or is full: jobs are stored all the same, and delivered when it is back."""


class QueueRefused(DutifulError):
    """The broker answers, but cannot take deliveries of these `queues`; `remedy` says what to do about `problem`."""

    def __init__(self, queues: Iterable[str], problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.queues = frozenset(queues)


class SchemaMismatch(DutifulError):
    """The database's schema does not fit this release; `remedy` says what to do about `problem`."""

    def __init__(self, problem: str, remedy: str = "run `dutiful migrate`") -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class ClaimLost(DutifulError):
    """The claim is no longer held: its lease ended, and what was done under it is discarded."""


class LockLost(DutifulError):
    """A named lock was lost while it was held, because its connection to the database ended."""


class BreakerOpen(DutifulError):
    """The breaker `name` rejects calls until `until`; unhandled, the job runs again then, and no attempt is counted."""

    def __init__(self, name: str, until: datetime, wait: timedelta) -> None:
        super().__init__(f"the breaker {name} is open: no call is made before {until:%Y-%m-%d %H:%M:%S} UTC")
        self.name = name
        self.until = until
        self.wait = wait  # the time until then, by the database's clock


class ItemsFailed(DutifulError):
    """All items of a job have failed."""


class StreamOverflow(DutifulError):
    """This reader of events was too slow and was dropped; subscribe again, the snapshot shows what was missed."""


class JobFailed(DutifulError):
    """The awaited job has no result: it ended as `state`, because of `error`."""

    def __init__(self, message: str, state: str, error: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.state = state
        self.error = error


class JobCancelled(DutifulError):
    """The awaited job was cancelled, so it has no result."""


class ResultTimeout(DutifulError):
    """The awaited job did not finish within the timeout; it continues."""


class StepMismatch(DutifulError):
    """A step's name is used for another call than the one whose result is stored; that stays as it is."""


class EventTimeout(DutifulError):
    """No event came in time; unhandled, the job fails, because another attempt would find the same."""


class ShutdownTimeout(DutifulError):
    """At the end of the grace period jobs still ran, or outcomes could not be stored; other workers run these again."""


class CannotOpen(DutifulError):
    """A sealed value cannot be opened: its key is not known here, or it was changed or moved; `key` is the key's id."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class DataRefused(DutifulError):
    """The database rejected the data, and would reject it again; nothing was stored."""
