"""Durable background jobs on the database you already have."""

from typing import TYPE_CHECKING

from dutiful.app import Dutiful
from dutiful.client.client import JobHandle
from dutiful.context import BatchContext, BatchJob, Context, Inject, Items, Parents
from dutiful.core.breaker.state import BreakerState
from dutiful.core.correlation_tree import CorrelationTree
from dutiful.core.cron import CatchUp, Cron
from dutiful.core.errors import (
    BackendAway,
    BreakerOpen,
    BulkRunNotFound,
    CannotOpen,
    ClaimLost,
    DataRefused,
    DeadLetterNotFound,
    DutifulError,
    EventTimeout,
    FieldError,
    IllegalTransition,
    ItemsFailed,
    JobCancelled,
    JobFailed,
    JobNotFound,
    KeysMissing,
    LockLost,
    MalformedId,
    NotAllowed,
    PayloadInvalid,
    QueueRefused,
    ResultTimeout,
    SchemaMismatch,
    ShutdownTimeout,
    StepMismatch,
    StoreAway,
    StoreBusy,
    StoreUnavailable,
    StreamOverflow,
    UniqueConflict,
    UnknownDependency,
    UnknownKind,
    UsageError,
)
from dutiful.core.events import Event, EventType
from dutiful.core.job import JobRecord, OnConflict, OnFailure, PhaseRecord, PhaseState, Progress, Scope, Unique
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
from dutiful.core.steps import StepRecord, StepState
from dutiful.declare.lane import LaneSettings
from dutiful.declare.limits import Concurrency, RateLimit
from dutiful.delivery.backend import QueueBackend
from dutiful.events import EventStream, Gap, Snapshot
from dutiful.observe.logs import JobFields, JsonLines
from dutiful.payload.key_ring import KeyRing
from dutiful.pipeline import Phase, Pipeline
from dutiful.settings import Settings
from dutiful.store.audit import AuditFilter
from dutiful.store.control import PauseScope
from dutiful.store.dead_letters import DeadLetter, DeadLetterFilter
from dutiful.store.trees import TreeProgress
from dutiful.workflow import PREVIOUS, Call, Workflow, chain, group
from dutiful.workflow.handle import WorkflowHandle

if TYPE_CHECKING:
    from dutiful.operator import Operator
    from dutiful.operator.drain import Drain

__version__ = "0.1.0"

__all__ = [
    "PREVIOUS",
    "AlertState",
    "AuditFilter",
    "BackendAway",
    "BatchContext",
    "BatchJob",
    "BreakerOpen",
    "BreakerState",
    "BulkRunNotFound",
    "Call",
    "Cancel",
    "CannotOpen",
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
    "EventTimeout",
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
    "KeyRing",
    "KeysMissing",
    "LaneSettings",
    "Linear",
    "LockLost",
    "MalformedId",
    "NotAllowed",
    "OnConflict",
    "OnFailure",
    "Operator",
    "Parents",
    "PauseScope",
    "PayloadInvalid",
    "Phase",
    "PhaseRecord",
    "PhaseState",
    "Pipeline",
    "Principal",
    "Progress",
    "QueueBackend",
    "QueueRefused",
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
    "StepMismatch",
    "StepRecord",
    "StepState",
    "StoreAway",
    "StoreBusy",
    "StoreUnavailable",
    "StreamOverflow",
    "TimeoutExceeded",
    "Transient",
    "TreeProgress",
    "Unique",
    "UniqueConflict",
    "UnknownDependency",
    "UnknownKind",
    "UsageError",
    "Workflow",
    "WorkflowHandle",
    "__version__",
    "chain",
    "group",
    "is_outdated",
]

if not TYPE_CHECKING:  # because it would let a type checker believe in any name

    def __getattr__(name: str) -> object:
        """Loads what operators use when it is first asked for: a worker never does, and would pay a megabyte for it."""
        if name not in {"Drain", "Operator"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from dutiful import operator
        from dutiful.operator import drain

        return drain.Drain if name == "Drain" else operator.Operator
