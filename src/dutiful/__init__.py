"""Durable background jobs on the database you already have."""

from dutiful.app import Dutiful
from dutiful.context import Context, Inject
from dutiful.core.cron import CatchUp
from dutiful.core.errors import (
    ClaimLost,
    DataRefused,
    DutifulError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    MalformedId,
    PayloadInvalid,
    ResultTimeout,
    SchemaMismatch,
    ShutdownTimeout,
    StoreUnavailable,
    UniqueConflict,
    UnknownKind,
    UsageError,
)
from dutiful.core.job import JobRecord, OnConflict, Scope, Unique
from dutiful.core.outcome import Cancel, Fail, RetryAfter, Snooze, TimeoutExceeded
from dutiful.core.retry import Exponential, Fixed, Jitter, Linear, Retry
from dutiful.core.transitions import State
from dutiful.settings import LaneSettings, Settings

__version__ = "0.1.0"

__all__ = [
    "Cancel",
    "CatchUp",
    "ClaimLost",
    "Context",
    "DataRefused",
    "Dutiful",
    "DutifulError",
    "Exponential",
    "Fail",
    "Fixed",
    "Inject",
    "Jitter",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobRecord",
    "LaneSettings",
    "Linear",
    "MalformedId",
    "OnConflict",
    "PayloadInvalid",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "SchemaMismatch",
    "Scope",
    "Settings",
    "ShutdownTimeout",
    "Snooze",
    "State",
    "StoreUnavailable",
    "TimeoutExceeded",
    "Unique",
    "UniqueConflict",
    "UnknownKind",
    "UsageError",
    "__version__",
]
