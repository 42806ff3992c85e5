"""What can go wrong, named after whose fault it is; each message says what to do next."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, NamedTuple
from uuid import UUID


class DutifulError(Exception):
    """The base of every error that Dutiful raises."""


class UsageError(DutifulError):
    """The caller's fault: trying again without a change will not help."""


class FieldError(NamedTuple):
    """What is wrong with one field of a payload; never with its value."""

    field: str  # its path: `account.owner`, `items[3]`; `payload` for the whole
    problem: str

    def __str__(self) -> str:
        return f"{self.field} {self.problem}"


class PayloadInvalid(UsageError):
    """A payload does not fit its kind; `field` is the path of the culprit, if there is a single one.

    `errors` are all that were found.
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


class UniqueConflict(DutifulError):
    """Another job holds the unique key; `existing` is its id."""

    def __init__(self, message: str, existing: UUID) -> None:
        super().__init__(message)
        self.existing = existing

    def __reduce__(self) -> tuple[type["UniqueConflict"], tuple[str, UUID]]:
        return type(self), (str(self), self.existing)


class JobNotFound(DutifulError):
    """There is no such job: it never was, it was removed by retention, or it belongs to another tenant."""


class DeadLetterNotFound(DutifulError):
    """There is no such dead letter: its job never failed for good, it was removed, or it belongs to another tenant."""


class BulkRunNotFound(DutifulError):
    """There is no such bulk run, or it belongs to another tenant."""


class PostNotFound(DutifulError):
    """There is no such message to a webhook, or none that has ended."""


class NotAllowed(DutifulError):
    """The principal may not do this, or may not see it; nothing was changed."""


class IllegalTransition(DutifulError):
    """The state of a job or a dead letter does not allow this act; nothing was changed."""


class StoreUnavailable(DutifulError):
    """The database did not answer; what was asked for may be tried again."""


class SchemaMismatch(DutifulError):
    """The database's schema and this release do not fit each other; `remedy` is what to do about `problem`."""

    def __init__(self, problem: str, remedy: str = "run `dutiful migrate`") -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["SchemaMismatch"], tuple[str, str]]:
        return type(self), (self.problem, self.remedy)


class ClaimLost(DutifulError):
    """The job is no longer ours: its lease ended, and whatever we did under it is discarded."""


class LockLost(DutifulError):
    """A named lock was lost while its holder worked under it: its connection to the database ended."""


class BreakerOpen(DutifulError):
    """The breaker `name` lets no call through before `until`; unhandled, the job is run again then, unspent."""

    def __init__(self, name: str, until: datetime, wait: timedelta) -> None:
        super().__init__(f"the breaker {name} is open: no call is made before {until:%Y-%m-%d %H:%M:%S} UTC")
        self.name = name
        self.until = until
        self.wait = wait  # how long that is, by the clock of the database

    def __reduce__(self) -> tuple[type["BreakerOpen"], tuple[str, datetime, timedelta]]:
        return type(self), (self.name, self.until, self.wait)


class ItemsFailed(DutifulError):
    """Every item that a job worked on has failed."""


class StreamOverflow(DutifulError):
    """This reader of events was too slow, so it was dropped; subscribe again, the snapshot tells what was missed."""


class JobFailed(DutifulError):
    """The awaited job has no result: it ended in `state`, because of `error`."""

    def __init__(self, message: str, state: str, error: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.state = state
        self.error = error

    def __reduce__(self) -> tuple[type["JobFailed"], tuple[str, str, Mapping[str, object] | None]]:
        return type(self), (str(self), self.state, self.error)


class JobCancelled(DutifulError):
    """The awaited job was cancelled, so it has no result."""


class ResultTimeout(DutifulError):
    """The awaited job did not finish in the time allowed; it goes on."""


class ShutdownTimeout(DutifulError):
    """Jobs still ran when the time to shut down was over, or outcomes could not be stored; others take them later."""


class DataRefused(DutifulError):
    """The database refused what it was given, and would refuse it again; nothing was stored."""
