"""Durable background jobs on the database you already have."""

from dutiful.app import Dutiful
from dutiful.context import Context, Inject, Items
from dutiful.core.cron import CatchUp
from dutiful.core.errors import (
    ClaimLost,
    DataRefused,
    DutifulError,
    ItemsFailed,
    JobCancelled,
    JobFailed,
    JobNotFound,
    LockLost,
    MalformedId,
    PayloadInvalid,
    ResultTimeout,
    SchemaMismatch,
    ShutdownTimeout,
    StoreUnavailable,
    StreamOverflow,
    UniqueConflict,
    UnknownKind,
    UsageError,
)
from dutiful.core.event import Event, EventType
from dutiful.core.guard import is_stale
from dutiful.core.job import JobRecord, OnConflict, PhaseRecord, Progress, Scope, Unique
from dutiful.core.outcome import Cancel, Fail, RetryAfter, Skip, Snooze, TimeoutExceeded
from dutiful.core.pipeline import PhaseState
from dutiful.core.retry import Exponential, Fixed, Jitter, Linear, Retry
from dutiful.core.transitions import State
from dutiful.pipeline import Phase, Pipeline
from dutiful.settings import LaneSettings, Settings
from dutiful.watcher import EventStream, Gap, Snapshot

__version__ = "0.1.0"

__all__ = [
    "Cancel",
    "CatchUp",
    "ClaimLost",
    "Context",
    "DataRefused",
    "Dutiful",
    "DutifulError",
    "Event",
    "EventStream",
    "EventType",
    "Exponential",
    "Fail",
    "Fixed",
    "Gap",
    "Inject",
    "Items",
    "ItemsFailed",
    "Jitter",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobRecord",
    "LaneSettings",
    "Linear",
    "LockLost",
    "MalformedId",
    "OnConflict",
    "PayloadInvalid",
    "Phase",
    "PhaseRecord",
    "PhaseState",
    "Pipeline",
    "Progress",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "SchemaMismatch",
    "Scope",
    "Settings",
    "ShutdownTimeout",
    "Skip",
    "Snapshot",
    "Snooze",
    "State",
    "StoreUnavailable",
    "StreamOverflow",
    "TimeoutExceeded",
    "Unique",
    "UniqueConflict",
    "UnknownKind",
    "UsageError",
    "__version__",
    "is_stale",
]
