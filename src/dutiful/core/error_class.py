"""What kind of trouble an error is: it decides whether and when the job is tried again."""

from enum import StrEnum


class ErrorClass(StrEnum):
    TRANSIENT = "transient"  # it will pass by itself: a timeout, a lost connection
    RETRYABLE = "retryable"  # it may pass; what nobody has classified
    NON_RETRYABLE = "non_retryable"  # it would fail the same way again
    RATE_LIMITED = "rate_limited"  # somebody asked us to slow down
