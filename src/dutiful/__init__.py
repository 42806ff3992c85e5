"""Durable background jobs on the database you already have."""

from dutiful.app import Dutiful
from dutiful.client.client import JobHandle
from dutiful.context import Context, Inject, Items
from dutiful.core.breaker.state import BreakerState
from dutiful.core.correlation_tree import CorrelationTree
from dutiful.core.cron import CatchUp, Cron
from dutiful.core.errors import (
    BackendAway,
    BreakerOpen,
    BulkRunNotFound,
    ClaimLost,
    DataRefused,
    DeadLetterNotFound,
    DutifulError,
    FieldError,
    IllegalTransition,
    ItemsFailed,
    JobCancelled,
    JobFailed,
    JobNotFound,
    LockLost,
    MalformedId,
    NotAllowed,
    PayloadInvalid,
    ResultTimeout,
    SchemaMismatch,
    ShutdownTimeout,
    StoreAway,
    StoreBusy,
    StoreUnavailable,
    StreamOverflow,
    UniqueConflict,
    UnknownKind,
    UsageError,
)
from dutiful.core.events import Event, EventType
from dutiful.core.job import JobRecord, OnConflict, PhaseRecord, PhaseState, Progress, Scope, Unique
from dutiful.core.metrics.alert import AlertState
from dutiful.core.outcome import (
    Cancel,
    Fail,
    RateLimited,
    Retryable,
    RetryAfter,
    Skip,
    Snooze,
    TimeoutExceeded,
    Transient,
)
from dutiful.core.outdated import is_outdated
from dutiful.core.principal import Principal, Role
from dutiful.core.retry.backoff import Exponential, Fixed, Jitter, Linear
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.policy import Retry
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.rules.rules import Rules
from dutiful.core.states import State
from dutiful.declare.limits import Concurrency, RateLimit
from dutiful.delivery.backend import QueueBackend
from dutiful.events import EventStream, Gap, Snapshot
from dutiful.observe.logs import JobFields, JsonLines
from dutiful.operator import Operator
from dutiful.operator.drain import Drain
from dutiful.pipeline import Phase, Pipeline
from dutiful.settings import LaneSettings, Settings
from dutiful.store.audit import AuditFilter
from dutiful.store.control import PauseScope
from dutiful.store.dead_letters import DeadLetter, DeadLetterFilter

__version__ = "0.1.0"

__all__ = [
    "AlertState",
    "AuditFilter",
    "BackendAway",
    "BreakerOpen",
    "BreakerState",
    "BulkRunNotFound",
    "Cancel",
    "CatchUp",
    "ClaimLost",
    "Concurrency",
    "Context",
    "CorrelationTree",
    "Cron",
    "DataRefused",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterNotFound",
    "Drain",
    "Dutiful",
    "DutifulError",
    "ErrorClass",
    "Event",
    "EventStream",
    "EventType",
    "Exponential",
    "Fail",
    "FieldError",
    "Fixed",
    "Gap",
    "IllegalTransition",
    "Inject",
    "Items",
    "ItemsFailed",
    "Jitter",
    "JobCancelled",
    "JobFailed",
    "JobFields",
    "JobHandle",
    "JobNotFound",
    "JobRecord",
    "JsonLines",
    "LaneSettings",
    "Linear",
    "LockLost",
    "MalformedId",
    "NotAllowed",
    "OnConflict",
    "Operator",
    "PauseScope",
    "PayloadInvalid",
    "Phase",
    "PhaseRecord",
    "PhaseState",
    "Pipeline",
    "Principal",
    "Progress",
    "QueueBackend",
    "RateLimit",
    "RateLimited",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Retryable",
    "ReviewAct",
    "ReviewState",
    "Role",
    "Rules",
    "SchemaMismatch",
    "Scope",
    "Settings",
    "ShutdownTimeout",
    "Skip",
    "Snapshot",
    "Snooze",
    "State",
    "StoreAway",
    "StoreBusy",
    "StoreUnavailable",
    "StreamOverflow",
    "TimeoutExceeded",
    "Transient",
    "Unique",
    "UniqueConflict",
    "UnknownKind",
    "UsageError",
    "__version__",
    "is_outdated",
]
