"""Which tests should notice the mutants of a module, and which mutants none can notice."""

from collections.abc import Mapping, Sequence

UNIT = "tests/unit/test_"
SUITES: Mapping[str, Sequence[str]] = {
    "core/settle.py": ["settle"],
    "core/states.py": ["states", "settle"],
    "core/outcome.py": ["outcome", "settle", "retry"],
    "core/items.py": ["items"],
    "core/cron.py": ["cron", "schedule"],
    "core/ids.py": ["ids"],
    "core/duration.py": ["duration"],
    "core/retry/backoff.py": ["backoff", "retry"],
    "core/retry/classify.py": ["classify", "error_info"],
    "core/retry/error_info.py": ["error_info", "classify"],
    "core/retry/policy.py": ["retry", "settle"],
    "core/breaker/state.py": ["breaker", "breaker_turns", "breaker_probes"],
    "core/breaker/probes.py": ["breaker_probes", "breaker_turns", "breaker"],
    "worker/leases.py": ["leases"],
    "worker/settler.py": ["settler"],
    "worker/fetcher.py": ["fetcher"],
}

# By module and the name of the mutant: why it behaves as the original does.
_SAME_CLAIM = "a completion and a change carry the claim_id of their claim"
_ONE = "the list has one element here"
_READ_LESS = "a fingerprint reads 2,000 of these 10,000 characters"
_SET_FIRST = "read only after _set_aside has set it"
EQUIVALENT: Mapping[str, Mapping[str, str]] = {
    "worker/settler.py": {
        "Settler.__post_init__: self._retry_locked_at = 0.0 → (nothing)": _SET_FIRST,
        "Settler.__post_init__: self._retry_locked_at = 0.0 → self._retry_locked_at = 1.0": _SET_FIRST,
        "Settler.__post_init__: self._retry_locked_at = 0.0 → self._retry_locked_at = -1.0": _SET_FIRST,
        "Settler._complete: one[0] → one[1]": _SAME_CLAIM,
        "Settler._apply: one[0] → one[1]": _SAME_CLAIM,
        "Settler._apply: one[0] → one[-1]": _SAME_CLAIM,
        "Settler._complete: done[0] → done[-1]": _ONE,
        "Settler._apply: changes[0] → changes[-1]": _ONE,
        "Settler._write_batch: self._under_way = SettleBatch() → (nothing)": "what it holds has been put back",
        "Settler._complete: asyncio.get_running_loop().call_soon(self.counters.count) → (nothing)": (
            "a flush of the counters counts what is noted; only the moment differs"
        ),
        "Settler._fail_refused_result: final=True → final=False": "its error is not retryable anyway",
    },
    "worker/leases.py": {
        "Leases.claiming: self._underway.discard(answer) → (nothing)": "its answer is set, so no one waits for it",
        "LeaseRenewalThread._check_event_loop: 2 * CHECK_EVERY → 2 / CHECK_EVERY": "CHECK_EVERY is 1",
    },
    "worker/fetcher.py": {
        "FetchCursors.lower: level.seq - 1 → level.seq + 1": "of the default alone: the smaller of both is taken",
        "FetchCursors.lower: level.seq - 1 → level.seq - 0": "of the default alone: the smaller of both is taken",
        "FetchCursors.levels: self._turn % len(names) if names else 0 → self._turn % len(names) if names else 1": (
            "without names nothing is ranked"
        ),
        "FetchCursors.levels: self._turn % len(names) if names else 0 → self._turn % len(names) if names else -1": (
            "without names nothing is ranked"
        ),
        "Fetcher.__init__: self._fetches = 0 → self._fetches = 1": "only compared with itself",
        "Fetcher.__init__: self._fetches = 0 → self._fetches = -1": "only compared with itself",
        "Fetcher.fetch: self._fetches += 1 → self._fetches += 2": "only compared with itself",
    },
    "core/outcome.py": {
        "Skip.__init__: super().__init__(reason) → (nothing)": "BaseException.__new__ has kept the argument",
    },
    "core/retry/classify.py": {
        "_agreed: inner[0] → inner[-1]": "all have the same class here",
    },
    "core/retry/error_info.py": {
        "describe: _redacted(message, 0) → _redacted(message, 1)": _READ_LESS,
        "describe: _redacted(message, 0) → _redacted(message, -1)": _READ_LESS,
    },
    "core/cron.py": {
        "_latest: candidate <= now → candidate < now": "the bisection finds the same firing in other steps",
        "_latest: (end - latest) / 2 → (end - latest) / 3": "the bisection finds the same firing in other steps",
    },
}


def tests_of(module: str) -> list[str]:
    return [f"{UNIT}{name}.py" for name in SUITES[module]]
