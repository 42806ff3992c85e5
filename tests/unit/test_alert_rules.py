"""Rules of alerts: what they read, how code declares them, and the catalogue of what they may watch."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from dutiful import Dutiful
from dutiful.core.errors import UsageError
from dutiful.core.metrics.alert import QUIET, AlertRule, series_of
from dutiful.core.metrics.catalogue import METRICS, Sample
from dutiful.core.metrics.estimate import Bounds
from dutiful.core.webhooks.message import new_secret
from dutiful.declare.alert import BUILT_IN


def test_each_set_of_labels_has_a_text_of_its_own() -> None:
    odd = [{}, {"kind": "a"}, {"kind": "a", "queue": "b"}, {"kind": "a, queue=b"}, {"kind": ""}, {"kind": " a"},
           {"kind": '"a"'}, {"kind": "a\nb"}]  # fmt: skip

    texts = [series_of(labels) for labels in odd]

    assert texts[:3] == ["", "kind=a", "kind=a, queue=b"] and len(set(texts)) == len(odd)
    assert all(text.isprintable() for text in texts)


def test_a_rule_reads_the_series_that_it_names_and_knows_no_share_of_few_or_none() -> None:
    rule = AlertRule(name="r", metric="error_rate", above=0.1, where={"kind": "mail"}, least=10)
    mail = {"kind": "mail"}

    assert rule.matches(Sample("error_rate", 1, mail))
    assert not rule.matches(Sample("error_rate", 1, {"kind": "other"}))
    assert not rule.matches(Sample("pending", 1, {"queue": "q", "kind": "mail"}))
    assert rule.is_reliable(Sample("error_rate", 1, mail, count=10))
    assert not rule.is_reliable(Sample("error_rate", 1, mail, count=9)) and not rule.is_reliable(None)
    assert AlertRule(name="r", metric="pending_total", above=10).is_reliable(None)


@pytest.mark.req("L81", "L82", "L83", "L84", "L85")
def test_the_five_built_in_rules_say_what_is_asked_of_them() -> None:
    minutes = timedelta(minutes=1)
    said = {rule.name: (rule.metric, rule.above, rule.hold, rule.where) for rule in BUILT_IN.values()}

    assert said == {
        "backlog": ("pending_total", 500, 5 * minutes, {}),
        "errors": ("last_error_rate", 0.10, 0 * minutes, {}),
        "fast-lane-full": ("lane_utilisation", 0.9, 2 * minutes, {"lane": "fast"}),
        "late": ("oldest_pending_seconds", 3600, 0 * minutes, {}),
        "breaker-open": ("breaker_open", 0, 0 * minutes, {}),
    }
    assert all(rule.summary and rule.runbook and rule.metric in METRICS for rule in BUILT_IN.values())


def test_a_rule_of_the_code_is_read_whole() -> None:
    app = Dutiful()

    rule = app.alert("mail-slow", "wait_p95_seconds", above=60, clear=30, hold="5m", clear_hold=60,
                     where={"kind": "mail"}, least=3, summary="mail is late", runbook="https://wiki/mail")  # fmt: skip

    assert rule == AlertRule(name="mail-slow", metric="wait_p95_seconds", above=60, clear=30,
                             hold=timedelta(minutes=5), clear_hold=timedelta(minutes=1), where={"kind": "mail"},
                             least=3, summary="mail is late", runbook="https://wiki/mail")  # fmt: skip
    assert app.alert_rules() == BUILT_IN | {"mail-slow": rule}
    quiet = app.alert("few", "workers", below=2)
    assert quiet is not None and quiet.summary == "workers is below 2"


def test_runbooks_of_built_in_rules_are_where_the_setting_says() -> None:
    app = Dutiful(runbook_url="https://wiki.example.com/ops/")
    app.alert("errors", "error_rate", above=0.5, runbook="ask Ada")

    runbooks = {rule.name: rule.runbook for rule in app.alert_rules().values()}

    assert runbooks["late"] == "https://wiki.example.com/ops/docs/runbooks/queue-backing-up.md"
    assert runbooks["errors"] == "ask Ada"
    with pytest.raises(UsageError, match="runbook_url is 'wiki'"):
        Dutiful(runbook_url="wiki").alert_rules()


def test_with_metrics_off_rules_on_what_workers_count_are_unmeasured() -> None:
    app = Dutiful(metrics=False)
    app.alert("lost", "lost_attempts", above=0)

    assert [name for name, rule in app.alert_rules().items() if rule.unmeasured] == ["errors", "lost"]


def test_a_built_in_rule_is_replaced_or_turned_off() -> None:
    app = Dutiful(alerts_off="late, few")

    mine = app.alert("backlog", "pending_total", above=9_000)
    app.alert("errors", off=True)
    app.alert("few", "workers", below=2)

    assert list(app.alert_rules()) == ["backlog", "fast-lane-full", "breaker-open"]
    assert app.alert_rules()["backlog"] is mine


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"metric": "pendin", "above": 1}, "there is no metric 'pendin'; there are: pending, pending_total"),
        ({"metric": ["pending"], "above": 1}, "there is no metric"),
        ({"above": 1}, "needs a metric; there are: pending"),
        ({"metric": "workers"}, "either above=… or below=…"),
        ({"metric": "workers", "above": 1, "below": 0}, "either above=… or below=…"),
        ({"metric": "workers", "above": "many"}, "above is 'many'; it must be a number"),
        ({"metric": "workers", "above": float("nan")}, "it must be a number"),
        ({"metric": "workers", "above": True}, "it must be a number"),
        ({"metric": "workers", "above": 10**400}, "above is too large"),
        ({"metric": "workers", "below": -(10**9999)}, "below is too large"),
        ({"metric": "pending", "below": 1}, "below needs where, with its queue and kind"),
        ({"metric": "running", "below": 1, "where": {"queue": "a"}}, "below needs where, with its queue and kind"),
        ({"metric": "workers", "above": 5, "clear": 6}, "make it at most above (5)"),
        ({"metric": "workers", "below": 5, "clear": 4}, "make it at least below (5)"),
        ({"metric": "workers", "above": 5, "hold": ""}, "hold '' is not a length of time"),
        ({"metric": "workers", "above": 5, "hold": "soon"}, "hold 'soon' is not a length of time"),
        ({"metric": "workers", "above": 5, "clear_hold": "-1s"}, "clear_hold '-1s' is not a length of time"),
        ({"metric": "workers", "above": 5, "where": {"queue": "a"}}, "has no label 'queue'; it has none"),
        ({"metric": "pending", "above": 5, "where": {"lane": "a"}}, "has no label 'lane'; it has: queue, kind"),
        ({"metric": "pending", "above": 5, "where": {"queue": 7}}, "where must give a text"),
        ({"metric": "pending", "above": 5, "where": "queue=a"}, "where must give a text"),
        ({"metric": "pending", "above": 5, "least": -1}, "least is -1"),
        ({"metric": "pending", "above": 5, "least": 3}, "leave least out; it is for: error_rate, last_error_rate"),
        ({"metric": "pending", "above": 5, "summary": "two\nlines"}, "summary must be one line"),
        ({"metric": "pending", "above": 5, "runbook": 7}, "runbook must be one line"),
        ({"name": "a\nb", "metric": "pending", "above": 5}, "alert"),
        ({"name": "backlog", "off": True, "above": 5, "least": 3}, "leave above, least out"),
        ({"off": True}, "none of: backlog, errors, fast-lane-full, late, breaker-open"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_meant_is_refused(given: dict[str, Any], says: str) -> None:
    app = Dutiful()

    with pytest.raises(UsageError) as error:
        app.alert(**{"name": "mine"} | given)

    assert says in str(error.value)
    assert app.alert_rules() == BUILT_IN


def test_a_name_is_given_once() -> None:
    app = Dutiful()
    app.alert("mine", "workers", below=1)

    with pytest.raises(UsageError, match="there is an alert 'mine' already"):
        app.alert("mine", "workers", below=1)


def test_a_webhook_hears_of_alerts_if_it_asks_and_of_jobs_besides_if_it_names_them() -> None:
    app = Dutiful(webhook_secrets=new_secret(b"s" * 32))
    url = "https://pager.example.com/"

    pager = app.webhook("pager", url, alerts=True)
    both = app.webhook("both", url, alerts=True, states=["failed"])
    plain = app.webhook("plain", url)

    assert (pager.alerts, pager.states) == (True, [])
    assert (both.alerts, both.states) == (True, ["failed"])
    assert plain.alerts is False and len(plain.states) == 4


# --- the catalogue


def test_a_missing_series_means_0_where_jobs_or_attempts_are_counted() -> None:
    def is_zero(name: str) -> bool:
        where = dict.fromkeys(METRICS[name].labels, "x")
        return AlertRule(name="r", metric=name, below=1, where=where).zero_sample() is not None

    counts = {"pending", "scheduled", "blocked", "running", "recent_attempts", "lost_attempts"}
    assert {name for name in METRICS if is_zero(name)} == counts | {"oldest_pending_seconds"}


def test_a_missing_share_or_quantile_is_unreliable_and_every_other_value_is_known() -> None:
    quantiles = {f"{what}_p{share}_seconds" for what in ("run", "wait") for share in (50, 95, 99)}
    unreliable = {name for name in METRICS if not AlertRule(name="r", metric=name, above=1).is_reliable(None)}
    assert unreliable == quantiles | {"error_rate", "last_error_rate"}


def test_what_workers_count_is_not_measured_if_they_count_nothing() -> None:
    shares = {name for name, metric in METRICS.items() if metric.share}
    counted = {name for name, metric in METRICS.items() if metric.counted}
    assert counted == shares | {"recent_attempts", "lost_attempts", "payload_most_bytes"}


def test_a_sample_with_bounds_is_an_estimate() -> None:
    assert Sample("pending_total", 5, bounds=Bounds(4, 6)).estimated is True
    assert Sample("pending_total", 5).estimated is False


def test_a_share_of_few_attempts_ends_an_alert_after_ten_quiet_minutes() -> None:
    assert timedelta(minutes=10) == QUIET


def test_the_sample_of_a_missing_series_is_0_with_its_labels() -> None:
    where = {"queue": "mail", "kind": "send"}
    rule = AlertRule(name="r", metric="pending", below=1, where=where)
    assert rule.zero_sample() == Sample("pending", 0, where)
    assert AlertRule(name="r", metric="pending", above=1, where=where).zero_sample() is None
    assert AlertRule(name="r", metric="pending", below=1, where={"queue": "mail"}).zero_sample() is None


def test_any_number_of_attempts_is_enough_unless_the_rule_asks_for_more() -> None:
    rule = AlertRule(name="r", metric="error_rate", above=0.1)
    assert rule.is_reliable(Sample("error_rate", 0.5, count=0))
    ten = msgspec.structs.replace(rule, least=10)
    assert [ten.is_reliable(Sample("error_rate", 0.5, count=count)) for count in (9, 10, None)] == [False, True, True]
