"""When a failed attempt is tried again: policies as values.

Retry(max_attempts=8, backoff=Exponential("2s"), by_class={"rate_limited": Fixed("10m")}, per_error={ValueError: None})
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias

from dutiful.core.backoff import WITHIN_A_FIFTH, Backoff, Exponential, NoSooner, Uniform
from dutiful.core.classify import Classified, classify
from dutiful.core.duration import LONGEST
from dutiful.core.error_class import ErrorClass
from dutiful.core.errors import UsageError

log = logging.getLogger("dutiful.core")
# Says the class of an error, or None to leave that to others.
Classifier: TypeAlias = Callable[[BaseException], ErrorClass | str | None]


SLOW_DOWN = Exponential("60s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a kind is tried, the first run included, and how long it waits in between.

    `by_class` overrides `backoff` for an error class, and `per_error` overrides both for a type of errors and its
    subtypes, the nearest one first; None means never. `classify` says what class an error is, by its type or by a
    function, where it knows better than dutiful.core.classify.
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
        for error_class, backoff in by_class.items():
            if backoff is not None:
                _check_backoff(f"by_class[{error_class}]", backoff)
        if by_class.get(ErrorClass.NON_RETRYABLE) is not None:
            raise UsageError(
                "by_class gives non_retryable a backoff, but such errors are never retried: give the errors that are "
                "to be retried another class, as in classify={LookupError: ErrorClass.RETRYABLE}."
            )
        for error, backoff in self.per_error.items():
            _check_error(error, "per_error", "None")
            if backoff is not None:
                _check_backoff(f"per_error[{error.__name__}]", backoff)
        # Copies: a policy does not change because the caller's dict did.
        copies = {"by_class": by_class, "per_error": dict(self.per_error), "classify": _classifier(self.classify)}
        for name, value in copies.items():
            object.__setattr__(self, name, value)

    def classified(self, error: BaseException) -> Classified:
        """The class of an error by this policy; non_retryable is exactly what it never retries whatever comes.

        What the policy says of types holds for causes and in groups as well, where nothing nearer is known.
        """
        return classify(error, self._judge)

    def _judge(self, error: BaseException) -> Classified | None:
        error_class, by_type = self._own_class(error), self._by_type(type(error))
        if error_class is None and by_type is None:
            return None
        known = classify(error)
        error_class = error_class or known.error_class
        if by_type is None:
            return Classified(error_class, known.retry_after)
        if by_type.backoff is None:
            error_class = ErrorClass.NON_RETRYABLE
        elif error_class is ErrorClass.NON_RETRYABLE:
            error_class = ErrorClass.RETRYABLE
        return Classified(error_class, known.retry_after, type(error))

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

        `retry_after`, what the other side asked for, replaces the computed delay and may pass its cap.
        `max_attempts` is the job's own number, where it was enqueued with one.
        """
        backoff = self._backoff_for(error, error_class)
        if backoff is None or attempt >= (self.max_attempts if max_attempts is None else max_attempts):
            return None
        if retry_after is not None:
            return min(max(retry_after, timedelta(0)), LONGEST)
        return backoff.after(attempt, uniform)

    def _backoff_for(self, error: type[BaseException] | None, error_class: ErrorClass | None) -> Backoff | None:
        by_type = self._by_type(error)
        if by_type is not None:
            return by_type.backoff
        if error_class is not None and error_class in self.by_class:
            return self.by_class[error_class]
        match error_class:
            case ErrorClass.NON_RETRYABLE:
                return None
            case ErrorClass.RATE_LIMITED:
                return NoSooner(self.backoff, SLOW_DOWN)
        return self.backoff

    def _by_type(self, error: type[BaseException] | None) -> "_Rule | None":
        for ancestor in error.__mro__ if error else ():
            if ancestor in self.per_error:
                return _Rule(self.per_error[ancestor])
        return None

    def _own_class(self, error: BaseException) -> ErrorClass | None:
        if isinstance(self.classify, Mapping):
            return next((self.classify[t] for t in type(error).__mro__ if t in self.classify), None)
        try:
            said = self.classify(error)
            return None if said is None else _error_class(said, "the answer of classify")
        except BaseException:  # the job has failed already, and its own error is the one to tell
            log.exception("classify of a retry policy failed; %s is classed without it", type(error).__qualname__)
            return None


@dataclass(frozen=True, slots=True)
class _Rule:
    backoff: Backoff | None


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


# 1, 2, 4 s and so on, up to a tenth more: the default.
BRISK = Retry()
# 2, 4, 8, 16, 32 s, each within a fifth; who asked us to slow down is left alone for 60, 120, 240 s.
PATIENT = Retry(
    backoff=Exponential("2s", jitter=WITHIN_A_FIFTH),
    by_class={ErrorClass.RATE_LIMITED: Exponential("60s", jitter=WITHIN_A_FIFTH)},
)
PROFILES: Mapping[str, Retry] = {"brisk": BRISK, "patient": PATIENT}
