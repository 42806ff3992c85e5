"""Rules and dashboards for operators use metrics that /metrics really has, and agree with Dutiful."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
import yaml
from api import eventually
from prometheus_client import Metric
from prometheus_client.openmetrics import parser

from dutiful import Dutiful, Fixed, Retry
from dutiful.core.duration import duration
from dutiful.core.job import NewJob
from dutiful.core.metrics.alert import QUIET
from dutiful.core.metrics.catalogue import METRICS
from dutiful.declare.alert import BUILT_IN
from dutiful.observe.measure import DEPTHS
from dutiful.store.control import PauseScope
from dutiful.web import create_app
from dutiful.web.api import metrics

ROOT = Path(__file__).parents[2]
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    group["name"]: {rule["labels"]["rule"]: rule for rule in group["rules"]}
    for group in yaml.safe_load((ROOT / "deploy/prometheus/dutiful.rules.yml").read_text())["groups"]
}
RULES, BEYOND = GROUPS["dutiful"], GROUPS["dutiful-beyond"]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dutiful.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
FUNCTIONS = {"sum", "max", "increase", "rate", "histogram_quantile", "vector", "absent"}
OPERATORS = {"by", "on", "and", "or"}
TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])|(?P<name>[A-Za-z_]\w*)|(?P<number>\d[\d.]*)'
    r"|(?P<sign>=~|!~|!=|>=|<=|[-+*/(){},=<>])|(?P<space>\s+)|(?P<odd>.)"
)
read: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families
Series = dict[str, set[str]]  # by metric, the labels that its series have
OWN: Series = {"ALERTS": {"alertname", "alertstate"}}  # Prometheus' own


class Asked(NamedTuple):
    metrics: Series  # and the labels that each is picked by
    groups: set[str]  # the labels that results have


def asked(expression: str) -> Asked:
    """What a PromQL expression is about; ValueError if it is none."""
    tokens = [(match.lastgroup, match[0]) for match in TOKEN.finditer(expression) if match.lastgroup != "space"]
    open_ends: list[str] = []
    found = Asked({}, set())
    metric, grouping = "", False
    for place, (sort, text) in enumerate(tokens):
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if text in ("(", "{"):
            open_ends.append({"(": ")", "{": "}"}[text])
        elif text in (")", "}"):
            if not open_ends or open_ends.pop() != text:
                raise ValueError(f"{text} closes nothing in {expression}")
            grouping = False
        elif sort == "name" and grouping:
            found.groups.add(text)
        elif sort == "name" and open_ends[-1:] == ["}"]:
            found.metrics[metric].add(text)
        elif text in OPERATORS:
            grouping = text in ("by", "on")
        elif sort == "name" and (text in FUNCTIONS) != (following == "(" or following == "by"):
            raise ValueError(f"{text} in {expression} is no function that we know")
        elif sort == "name" and text not in FUNCTIONS:
            metric = text
            found.metrics.setdefault(metric, set())
        elif sort == "odd":
            raise ValueError(f"{text} makes no sense in {expression}")
    if open_ends:
        raise ValueError(f"{expression} ends too soon")
    return found


def alternatives(expression: str) -> list[str]:
    """What `or` stands between, each in parentheses unless it is the only one."""
    found = [part.strip() for part in re.split(r"\)\s+or\s+\(", expression)]
    if len(found) > 1:
        assert found[0].startswith("(") and found[-1].endswith(")"), expression
        found[0], found[-1] = found[0][1:].strip(), found[-1][:-1].strip()
    return [" ".join(part.split()) for part in found]


def expressions() -> list[str]:
    return [rule["expr"] for rule in (RULES | BEYOND).values()] + [
        target["expr"] for panel in PANELS for target in panel["targets"]
    ]


async def reported(app: Dutiful) -> Series:
    """The metrics of a real server."""
    transport = httpx2.ASGITransport(app=create_app(app, open_metrics=True))
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
        page = (await http.get("/metrics", headers={"accept": "application/openmetrics-text"})).text
    series: Series = {}
    for family in read(page):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


@pytest.fixture
async def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Series:
    """Of an app that runs jobs and has one of each sort, once its worker has said so."""
    monkeypatch.setattr(metrics, "FRESH", 0.0)
    app = Dutiful(f"sqlite:///{tmp_path / 'jobs.db'}", heartbeat="100ms")
    go_on = asyncio.Event()

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("10ms")))
    async def mail() -> None:
        raise OSError("no listener")

    @app.job
    async def slow() -> None:
        await go_on.wait()

    async def whole() -> Series | None:
        found = await reported(app)
        shown = set(METRICS) - {"pending_total", "undelivered"}  # that of a broker
        return found if {f"dutiful_{name}" for name in shown} <= set(found) else None

    async with app, app.embedded(grace="5s"):
        store = (await app.client()).store
        unknown = NewJob(id=uuid4(), kind="unknown", queue="default", payload="{}")  # so no worker takes it
        await store.jobs.insert(
            [unknown, NewJob(id=uuid4(), kind="x", queue="q", payload="{}", depends_on=(unknown.id,))]
        )
        await mail.options(delay="1h").enqueue()
        for kind in (mail, slow):
            await kind.enqueue()
        await store.breakers.open("email-service", None)
        await (await app.operator()).fleet.pause(PauseScope.KIND, "render", "a test")
        found: Series = await eventually(whole)
        go_on.set()
        return found


@pytest.mark.req("L76", "L77", "L78", "L79", "L80")
async def test_every_question_of_the_rules_and_panels_is_answered_by_metrics(series: Series) -> None:
    series |= OWN
    assert len(list(expressions())) >= len(RULES) + len(BEYOND) + len(PANELS)
    for expression in expressions():
        question = asked(expression)
        assert set(question.metrics) - set(OWN), expression
        for metric, labels in question.metrics.items():
            assert metric in series, f"{expression}: there is no {metric}"
            assert labels <= series[metric], f"{expression}: {metric} has no {labels - series[metric]}"
        having = set[str]().union(*(series[metric] for metric in question.metrics))
        assert question.groups <= having, f"{expression}: nothing has {question.groups - having}"
    for panel in PANELS:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
            assert shown <= asked(target["expr"]).groups, panel["title"]
    source, *variables = DASHBOARD["templating"]["list"]
    assert source["type"] == "datasource" and variables != []
    for variable in variables:
        definition = re.fullmatch(r'label_values\(\{__name__=~"([^"]+)"\}, (\w+)\)', variable["definition"])
        assert definition is not None and variable["query"]["query"] == variable["definition"]
        named = {metric for metric in series if re.fullmatch(definition[1], metric)}
        assert {f"dutiful_{depth}" for depth in DEPTHS.values()} <= named, "whatever state its jobs are in"
        assert all(definition[2] in series[metric] for metric in named)


@pytest.mark.req("L81", "L82", "L83", "L84", "L85")
def test_the_rules_fire_where_the_built_in_alerts_do() -> None:
    assert set(RULES) == set(BUILT_IN) and not set(BEYOND) & set(BUILT_IN)
    for name, rule in RULES.items():
        built_in, expression = BUILT_IN[name], rule["expr"]
        threshold = re.search(r"> ([\d.]+)", expression)
        assert threshold is not None and float(threshold[1]) == built_in.above, name
        assert duration(rule.get("for", "0s")) == built_in.hold, name
        metric = "pending" if built_in.metric == "pending_total" else built_in.metric
        assert f"dutiful_{metric}" in asked(expression).metrics, name
        for label, value in built_in.where.items():
            assert f'{label}="{value}"' in expression, name
        assert rule["annotations"]["summary"] == built_in.summary
        assert rule["annotations"]["runbook"] == built_in.runbook
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"]):
            assert label in asked(expression).groups, name
    assert duration(RULES["errors"]["keep_firing_for"]) == QUIET


def test_the_rules_are_over_where_the_built_in_alerts_are() -> None:
    for name, rule in RULES.items():
        begins, *goes_on = alternatives(rule["expr"])
        limits = [float(limit) for limit in re.findall(r" > ([\d.]+)", rule["expr"])]
        if BUILT_IN[name].clear is None:
            assert (limits, goes_on) == ([BUILT_IN[name].above], []), name
            continue
        assert limits == [BUILT_IN[name].above, BUILT_IN[name].clear], name
        value = begins.split(" > ")[0]
        # By all labels of the result: by fewer, one kind that fires would keep others firing.
        labels = ", ".join(re.findall(r"^max by \((.+?)\)", value))
        fires = f'on ({labels}) ALERTS{{alertname="{rule["alert"]}", alertstate="firing"}}'
        assert goes_on == [f"{value} > {BUILT_IN[name].clear:g} and {fires}"], name
    assert [name for name, rule in RULES.items() if "keep_firing_for" in rule] == ["errors"]


def test_what_dutiful_cannot_see_itself_and_what_waits_for_people_have_rules_too() -> None:
    assert set(BEYOND) == {"no-workers", "silent", "stuck", "dead-letters"}
    assert (BEYOND["no-workers"]["expr"], BEYOND["no-workers"]["for"]) == ("max(dutiful_workers) == 0", "1m")
    for rule in BEYOND.values():
        assert (ROOT / rule["annotations"]["runbook"]).is_file() and rule["annotations"]["description"]


def test_the_dashboard_has_all_parts_and_no_server_of_ours() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Queues", "Kinds", "Lanes", "Breakers", "Dead letters"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in DASHBOARD["panels"]
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places)), "no panel lies over another one"
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}" and panel["description"]


@pytest.mark.parametrize("broken", ["sum(dutiful_pending", "sum)(", "foo(dutiful_pending)", "dutiful_pending # 3"])
def test_what_is_no_expression_is_rejected(broken: str) -> None:
    with pytest.raises(ValueError):
        asked(broken)


async def test_the_guide_says_what_each_metric_means(series: Series) -> None:
    guide = (ROOT / "docs/guides/metrics.md").read_text()
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series}
    known = {f"dutiful_{name}" for name in METRICS} | {"dutiful_pending_total"}
    for name in shown | known:
        assert f"`{name}`" in guide or f"`{name.removeprefix('dutiful_')}`" in guide or f"`{name}{{" in guide, name
