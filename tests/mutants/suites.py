"""Which tests should notice the mutants of a module, and which mutants none can notice."""

from collections.abc import Mapping, Sequence

UNIT = "tests/unit/test_"
SUITES: Mapping[str, Sequence[str]] = {
    "core/settle.py": ["settle"],
    "core/states.py": ["states", "settle"],
    "core/steps.py": ["core_steps"],
    "core/sealed.py": ["sealed", "key_ring"],
    "core/shares.py": ["core_shares"],
    "core/outcome.py": ["outcome", "settle", "retry"],
    "core/items.py": ["items"],
    "core/cron.py": ["cron", "schedule"],
    "core/ids.py": ["ids"],
    "core/duration.py": ["duration"],
    "core/json.py": ["json"],
    "core/events.py": ["core_events", "events_watcher"],
    "core/job.py": ["job", "core_events"],
    "core/errors.py": ["errors"],
    "core/principal.py": ["principal", "stream_access"],
    "core/outdated.py": ["outdated"],
    "core/limits.py": ["limit_windows"],
    "core/maintenance_window.py": ["maintenance_window"],
    "core/correlation_tree.py": ["correlation_tree"],
    "core/metrics/alert.py": ["alert", "alert_rules"],
    "core/metrics/catalogue.py": ["alert_rules", "alert", "prometheus"],
    "core/metrics/estimate.py": ["estimate"],
    "core/metrics/last.py": ["last_attempts"],
    "core/metrics/sketch.py": ["sketch", "prometheus"],
    "core/redaction/assignments.py": ["redaction_limits", "redaction"],
    "core/redaction/invisible.py": ["redaction_limits", "redaction"],
    "core/redaction/redact.py": ["redaction_limits", "redaction"],
    "core/redaction/secret_shapes.py": ["redaction_limits", "redaction"],
    "core/redaction/sensitive_names.py": ["sensitive_names", "redaction"],
    "core/review/audit.py": ["review"],
    "core/review/state.py": ["review"],
    "core/rules/rules.py": ["rules_limits", "rules"],
    "core/rules/violations.py": ["rules_limits", "rules"],
    "core/webhooks/endpoint.py": ["webhook_endpoint"],
    "core/webhooks/message.py": ["webhook_message", "signature"],
    "core/retry/backoff.py": ["backoff", "retry"],
    "core/retry/classify.py": ["classify", "error_info"],
    "core/retry/error_info.py": ["error_info", "classify"],
    "core/retry/policy.py": ["retry", "settle"],
    "core/breaker/state.py": ["breaker", "breaker_turns", "breaker_probes"],
    "core/breaker/probes.py": ["breaker_probes", "breaker_turns", "breaker"],
    "worker/leases.py": ["leases"],
    "worker/settler.py": ["settler", "settler_refusals", "settler_parts"],
    "worker/lanes/fetcher.py": ["fetcher"],
}

# By module and the name of the mutant: why it behaves as the original does.
_SAME_CLAIM = "a completion and a change carry the claim_id of their claim"
_ONE = "the list has one element here"
_READ_LESS = "a fingerprint reads 2,000 of these 10,000 characters"
_SET_FIRST = "read only after _set_aside has set it"
_SAME_SORT = "a token ends as it begins: with a quote, a bracket or a part of a number"
_NO_CARD = "no card has such a number"
_ONE_GROUP = "one of the groups has always matched"
_NOT_FIRST = "a closing bracket is never the first character"
_DIFFERENCES = "only differences between tenants count"
_AT_LEAST = "a tenant counts as served as much as the clock says at least"
_FIRST_POWER = "at 4 both ways give the same"
EQUIVALENT: Mapping[str, Mapping[str, str]] = {
    "worker/settler.py": {
        "Settler.__post_init__: self._retry_locked_at = 0.0 → (nothing)": _SET_FIRST,
        "Settler.__post_init__: self._retry_locked_at = 0.0 → self._retry_locked_at = 1.0": _SET_FIRST,
        "Settler.__post_init__: self._retry_locked_at = 0.0 → self._retry_locked_at = -1.0": _SET_FIRST,
        "Settler.__post_init__: self._flow = 0 → self._flow = 1": "both are fewer than make a flow",
        "Settler.__post_init__: self._flow = 0 → self._flow = -1": "both are fewer than make a flow",
        "Settler._count: continue → (nothing)": "an attempt that was refused is counted no more",
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
    "worker/lanes/fetcher.py": {
        "FetchCursors.lower: level.seq - 1 → level.seq + 1": "of the default alone: the smaller of both is taken",
        "FetchCursors.lower: level.seq - 1 → level.seq - 0": "of the default alone: the smaller of both is taken",
        "LevelSource.empty: return not self._cursors.serves(self._lane.queues) → return None": (
            "without levels nothing is asked in any case"
        ),
        "Fetcher.__init__: self._fetches = 0 → self._fetches = 1": "only compared with itself",
        "Fetcher.__init__: self._fetches = 0 → self._fetches = -1": "only compared with itself",
        "Fetcher.fetch: self._fetches += 1 → self._fetches += 2": "only compared with itself",
        "Fetcher.fetch_for: self._fetches += 1 → self._fetches += 2": "only compared with itself",
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
    "core/json.py": {
        "_is_number: return False → return None": "only asked whether it is true",
        "_readable: token[0][0] → token[0][-1]": _SAME_SORT,
        "_too_deep: token[0][0] → token[0][-1]": _SAME_SORT,
        "_too_deep: text.count('[') + text.count('{') <= DEEPEST → text.count('[') + text.count('{') < DEEPEST": (
            "so few brackets are not nested too deeply, and a count of their levels finds the same"
        ),
    },
    "core/rules/violations.py": {
        "_secret: 0 < abs(value) < 1 << 63 → 0 <= abs(value) < 1 << 63": _NO_CARD,
        "_secret: 0 < abs(value) < 1 << 63 → -1 < abs(value) < 1 << 63": _NO_CARD,
        "_secret: 0 < abs(value) < 1 << 63 → 1 < abs(value) < 1 << 63": _NO_CARD,
        "_secret: 0 < abs(value) < 1 << 63 → 0 < abs(value) <= 1 << 63": _NO_CARD,
        "_secret: 1 << 63 → 2 << 63": _NO_CARD,
        "_secret: 1 << 63 → 1 << 64": _NO_CARD,
    },
    "core/webhooks/endpoint.py": {
        "_public: return False → return None": "only asked whether it is true",
    },
    "core/webhooks/message.py": {
        "_describe: 300 <= status < 400 → 299 <= status < 400": "a message with this status is delivered",
    },
    "core/redaction/assignments.py": {
        "_marked: pair[0] → pair[1]": "both groups of a pair match together",
        "_marked: pair[0] → pair[-1]": "both groups of a pair match together",
        "_is_code: close >= 0 → close > 0": _NOT_FIRST,
        "_is_code: close >= 0 → close >= 1": _NOT_FIRST,
        "_is_code: return False → return None": "only asked whether it is true",
        "_keyed: close < 0 → close <= 0": _NOT_FIRST,
        "_keyed: close < 0 → close < 1": _NOT_FIRST,
    },
    "core/redaction/sensitive_names.py": {
        "field_name: len(name) <= _LONGEST → len(name) < _LONGEST": "a name of this length is cut to itself",
        "_meaning: parts[0] → parts[-1]": _ONE,
        "_ending: -3 → -4": "no ending has four words",
    },
    "core/redaction/invisible.py": {
        "_unescaped: escape.lastindex or 0 → escape.lastindex or 1": _ONE_GROUP,
        "_unescaped: escape.lastindex or 0 → escape.lastindex or -1": _ONE_GROUP,
        "_unescaped: code <= sys.maxunicode → code < sys.maxunicode": "the last character of Unicode is seen",
        "_seen: return '' → return None": "str.translate drops both",
    },
    "core/redaction/redact.py": {
        "_without: end > last → end >= last": "no span is empty, and one that ends with another adds nothing",
    },
    "core/metrics/alert.py": {
        "AlertRule: least: int = 0 → least: int = -1": "no count is below 0",
    },
    "core/metrics/sketch.py": {
        "bucket: microseconds < 4 → microseconds <= 4": _FIRST_POWER,
        "bucket: microseconds < 4 → microseconds < 5": _FIRST_POWER,
        "edge: number < 4 → number <= 4": _FIRST_POWER,
        "edge: number < 4 → number < 5": _FIRST_POWER,
        "bucket: microseconds > 0 → microseconds >= 0": "the bucket of 0 is 0",
        "bucket: microseconds > 0 → microseconds > -1": "the bucket of 0 is 0",
        "add_times: times[0] < 0 → times[0] <= 0": "what is not below 0 stays as it is",
        "add_times: times[0] < 0 → times[0] < 1": "what is not below 0 stays as it is",
        "add_times: edge(number) / 1000000.0 → edge(number) / 1000001.0": "times left over are counted one by one",
    },
    "core/ids.py": {
        ": 15 << 76 → 14 << 76": "the version sets the bit that is not cleared",
    },
    "core/metrics/last.py": {
        "_longest_pause: timedelta(0) → timedelta(-1)": "a pause that is no longer than the window changes nothing",
    },
    "core/shares.py": {
        "Shares.__init__: self._clock = 0.0 → self._clock = 1.0": _DIFFERENCES,
        "Shares.__init__: self._clock = 0.0 → self._clock = -1.0": _DIFFERENCES,
        "Shares.choose.place: served.get(tenant, 0.0) → served.get(tenant, -1.0)": _AT_LEAST,
        "Shares.took: self._served.get(tenant, 0.0) → self._served.get(tenant, 1.0)": _DIFFERENCES,
        "Shares.took: self._served.get(tenant, 0.0) → self._served.get(tenant, -1.0)": _AT_LEAST,
        "Shares._candidates: len(fresh) >= most → len(fresh) > most": "all others come after these",
        "Shares._advance: start > self._clock → start >= self._clock": _AT_LEAST,
        "Shares._advance: served > start → served >= start": _AT_LEAST,
    },
    "core/correlation_tree.py": {
        "_edges: safe.update(path) → (nothing)": "only saves walking the same path again",
    },
    "core/cron.py": {
        "_latest: candidate <= now → candidate < now": "the bisection finds the same firing in other steps",
        "_latest: (end - latest) / 2 → (end - latest) / 3": "the bisection finds the same firing in other steps",
    },
}


def tests_of(module: str) -> list[str]:
    return [f"{UNIT}{name}.py" for name in SUITES[module]]
