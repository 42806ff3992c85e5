"""When a failed attempt is tried again: policies as values.

Retry(max_attempts=8, backoff=Exponential("2s"), by_class={"rate_limited": Fixed("10m")}, per_error={ValueError: None})
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias

from dutiful.core.duration import LONGEST
from dutiful.core.errors import UsageError
from dutiful.core.retry.backoff import WITHIN_TWENTY_PERCENT, Backoff, Exponential, LongerOf, Uniform
from dutiful.core.retry.classify import Classification, ErrorClass, classify

log = logging.getLogger("dutiful.core")
# Returns the class of an error, or None if it does not know.
Classifier: TypeAlias = Callable[[BaseException], ErrorClass | str | None]


# The least wait after a rate limit.
RATE_LIMIT_BACKOFF = Exponential("60s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a kind is tried, the first run included, and how long it waits in between.

    `by_class` overrides `backoff` for an error class, and `per_error` overrides both for a type of errors and its
    subtypes, the nearest one first; None means never. `classify` gives the class of an error, by its type or by a
    function, before dutiful.core.retry.classify does.
    """

    max_attempts: int = 5
    backoff: Backoff = field(default_factory=Exponential)
    by_class: Mapping[ErrorClass, Backoff | None] = field(default_factory=dict, hash=False)
    per_error: Mapping[type[BaseException], Backoff | None] = field(default_factory=dict, hash=False)
    classify: Mapping[type[BaseException], ErrorClass] | Classifier = field(default_factory=dict, hash=False)

    @classmethod
    def named(cls, name: str, *, max_attempts: int | None = None) -> "Retry":
        """One of PROFILES, by its name."""
        profile = PROFILES.get(name)
        if profile is None:
            raise UsageError(f"there is no retry profile {name!r:.80}; there are: {', '.join(PROFILES)}")
        return profile if max_attempts is None else replace(profile, max_attempts=max_attempts)

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise UsageError(f"max_attempts {self.max_attempts!r} must be a whole number from 1; 1 means no retries.")
        _check_backoff("backoff", self.backoff)
        by_class = {_error_class(name, "by_class"): backoff for name, backoff in self.by_class.items()}
        named: list[tuple[str, object]] = [(f"by_class[{name}]", backoff) for name, backoff in by_class.items()]
        if by_class.get(ErrorClass.NON_RETRYABLE) is not None:
            raise UsageError(
                "by_class gives non_retryable a backoff, but such errors are never retried: give the errors that are "
                "to be retried another class, as in classify={LookupError: ErrorClass.RETRYABLE}."
            )
        for error, backoff in self.per_error.items():
            _check_error(error, "per_error", "None")
            named.append((f"per_error[{error.__name__}]", backoff))
        for what, one in named:
            if one is not None:
                _check_backoff(what, one)
        # Copies: a policy does not change because the caller's dict did.
        copies = {"by_class": by_class, "per_error": dict(self.per_error), "classify": _classifier(self.classify)}
        for name, value in copies.items():
            object.__setattr__(self, name, value)

    def classified(self, error: BaseException) -> Classification:
        """The class of an error by this policy; non_retryable is exactly what it never retries.

        The policy's rules for types also apply to causes and in groups, where nothing nearer is known.
        """
        return classify(error, self._classify)

    def _classify(self, error: BaseException) -> Classification | None:
        error_class, nearest = self._own_class(error), self._nearest(type(error))
        if error_class is None and nearest is None:
            return None
        known = classify(error)
        error_class = error_class or known.error_class
        if nearest is None:
            return Classification(error_class, known.retry_after)
        if self.per_error[nearest] is None:
            error_class = ErrorClass.NON_RETRYABLE
        elif error_class is ErrorClass.NON_RETRYABLE:
            error_class = ErrorClass.RETRYABLE
        return Classification(error_class, known.retry_after, type(error))

    def delay_after(
        self,
        attempt: int,
        error: type[BaseException] | None,
        uniform: Uniform,
        retry_after: timedelta | None = None,
        *,
        error_class: ErrorClass | None = None,
        max_attempts: int | None = None,
    ) -> timedelta | None:
        """How long to wait after this failed attempt; None if it was the last.

        `retry_after`, what the other side asked for, replaces the computed delay and may exceed its cap.
        `max_attempts` is the job's own, if it was enqueued with one.
        """
        backoff = self._backoff_for(error, error_class)
        if backoff is None or attempt >= (self.max_attempts if max_attempts is None else max_attempts):
            return None
        if retry_after is not None:
            return min(max(retry_after, timedelta(0)), LONGEST)
        return backoff.after(attempt, uniform)

    def _backoff_for(self, error: type[BaseException] | None, error_class: ErrorClass | None) -> Backoff | None:
        nearest = self._nearest(error)
        if nearest is not None:
            return self.per_error[nearest]
        if error_class is not None and error_class in self.by_class:
            return self.by_class[error_class]
        match error_class:
            case ErrorClass.NON_RETRYABLE:
                return None
            case ErrorClass.RATE_LIMITED:
                return LongerOf(self.backoff, RATE_LIMIT_BACKOFF)
        return self.backoff

    def _nearest(self, error: type[BaseException] | None) -> type[BaseException] | None:
        """The type itself, or the nearest of its ancestors, that `per_error` names."""
        return next((ancestor for ancestor in error.__mro__ if ancestor in self.per_error), None) if error else None

    def _own_class(self, error: BaseException) -> ErrorClass | None:
        if isinstance(self.classify, Mapping):
            return next((self.classify[t] for t in type(error).__mro__ if t in self.classify), None)
        try:
            own = self.classify(error)
            return None if own is None else _error_class(own, "the answer of classify")
        except BaseException:  # the job has failed already, and its own error is the one to record
            log.exception("classify of a retry policy failed; %s is classified without it", type(error).__qualname__)
            return None


def _check_backoff(name: str, backoff: object) -> None:
    if isinstance(backoff, type) or not isinstance(backoff, Backoff):
        raise UsageError(f'{name} {backoff!r} is no backoff: give Fixed("5s"), Linear("5s") or Exponential("1s").')


def _check_error(error: object, name: str, value: str) -> None:
    if not (isinstance(error, type) and issubclass(error, BaseException)):
        raise UsageError(f"{name} has {error!r} as a key: give exception classes, as in {{ValueError: {value}}}.")


def _error_class(value: Any, name: str) -> ErrorClass:
    try:
        return ErrorClass(value)
    except ValueError:
        raise UsageError(f"{name} has {value!r:.80}, which is no error class: {', '.join(ErrorClass)}.") from None


def _classifier(given: object) -> Mapping[type[BaseException], ErrorClass] | Classifier:
    if isinstance(given, Mapping):
        for error in given:
            _check_error(error, "classify", "ErrorClass.NON_RETRYABLE")
        return {error: _error_class(value, "classify") for error, value in given.items()}
    if isinstance(given, type) or not callable(given):
        raise UsageError(
            f"classify {given!r:.80} is no classifier: give a function of an error, or classes by type, as in "
            "{LookupError: ErrorClass.NON_RETRYABLE}."
        )
    return given


# 1, 2, 4 s and so on, each up to 10 % more: the default.
BRISK = Retry()
# 2, 4, 8, 16, 32 s, each within 20 %; after a rate limit 60, 120, 240 s.
PATIENT = Retry(
    backoff=Exponential("2s", jitter=WITHIN_TWENTY_PERCENT),
    by_class={ErrorClass.RATE_LIMITED: Exponential("60s", jitter=WITHIN_TWENTY_PERCENT)},
)
PROFILES: Mapping[str, Retry] = {"brisk": BRISK, "patient": PATIENT}
