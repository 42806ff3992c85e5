"""`dutiful alerts`, and the same over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from api import AdminApi, admin_api
from command_line import Answer, Project

from dutiful import Dutiful
from dutiful.core.metrics.alert import Alert, AlertState
from dutiful.store import Store
from dutiful.store.alerts import AlertChange

OK, FIRING = AlertState.OK, AlertState.FIRING
NOW = datetime.now(UTC)
LATE = Alert(
    rule="late", series="queue=mail", state=FIRING, since=NOW, fired_at=NOW, value=4000.5, summary="it is late"
)
OVER = Alert(rule="backlog", series="", state=OK, since=NOW, fired_at=NOW, cleared_at=NOW, value=12, summary="deep")
Run = Callable[..., Awaitable[Answer]]


@pytest.fixture
def run(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in a thread, because it has an event loop of its own."""
    return lambda *args: asyncio.to_thread(project.call, monkeypatch, capsys, *args)


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


async def put(store: Store, *alerts: Alert) -> None:
    await store.alerts.change([AlertChange(None, alert) for alert in alerts])


async def test_what_fires_is_shown_first_with_where_to_read_on(run: Run, store: Store) -> None:
    empty = await run("alerts")
    await put(store, OVER, LATE)
    shown = await run("alerts")
    first, second = (await run("alerts", "--json")).json["alerts"]

    assert (empty.code, empty.out) == (0, "no alert fires or has fired lately\n")
    assert "no worker evaluates alerts" in empty.err
    lines = [line.split() for line in shown.out.splitlines()]
    assert shown.code == 0 and [line[0] for line in lines] == ["alert", "late", "backlog"]
    assert lines[1][1:3] == ["queue=mail", "firing"] and "4000.5" in lines[1] and lines[2][1:3] == ["-", "ok"]
    assert "oldest_pending_seconds > 3600" in shown.out and "docs/runbooks/queue-backing-up.md" in shown.out
    assert (first["rule"], first["state"], first["declared"]["above"]) == ("late", "firing", 3600)
    assert (second["rule"], second["state"]) == ("backlog", "ok")


async def test_a_script_learns_by_the_exit_code_that_something_fires(run: Run, store: Store) -> None:
    await put(store, OVER)
    blind = await run("alerts", "--firing", "--json")
    await store.alerts.note_check(timedelta(hours=1))
    quiet = await run("alerts", "--firing")
    await put(store, LATE)
    loud = await run("alerts", "--firing")

    assert (blind.code, json.loads(blind.out)) == (3, {"watched": False, "alerts": []})
    assert (quiet.code, quiet.out, quiet.err) == (0, "no alert fires\n", "")
    assert loud.code == 1 and "late" in loud.out and "backlog" not in loud.out
    reported = await run("alerts", "--firing", "--json")
    assert reported.code == 1 and datetime.fromisoformat(json.loads(reported.out)["watched"]) >= NOW


async def test_the_rules_of_the_code_are_listed_beside_the_built_in_ones(run: Run, project: Project) -> None:
    with (project.folder / "jobs.py").open("a") as code:
        code.write(
            '\napp.alert("mail-late", "pending", above=7, clear=2, hold="90s", where={"queue": "mail"})\n'
            'app.alert("backlog", off=True)\n'
        )

    shown = await run("alerts", "rules")
    rules = (await run("alerts", "rules", "--json")).json["rules"]

    assert shown.code == 0 and "pending{queue=mail} > 7" in shown.out and "1m30s" in shown.out
    assert [rule["name"] for rule in rules] == ["errors", "fast-lane-full", "late", "breaker-open", "mail-late"]
    assert (rules[-1]["hold"], rules[-1]["clear"], rules[-1]["where"]) == (90, 2, {"queue": "mail"})


async def test_rules_that_see_nothing_are_marked_and_a_setting_that_turns_off_none_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUTIFUL_METRICS", "off")
    monkeypatch.setenv("DUTIFUL_RUNBOOK_URL", "https://wiki.example.com")
    shown = await run("alerts", "rules")
    monkeypatch.setenv("DUTIFUL_ALERTS_OFF", "backlok")
    refused = await run("alerts", "rules")

    assert "never, as metrics are off (last_error_rate > 0.1)" in shown.out
    assert "https://wiki.example.com/docs/runbooks/high-error-rate.md" in shown.out
    assert refused.code == 2 and "'backlok'" in refused.err


def test_an_impossible_rule_is_reported_in_one_line(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///none.db")
    (tmp_path / "jobs.py").write_text(
        'from dutiful import Dutiful\napp = Dutiful()\napp.alert("x", "latency", above=1)\n'
    )

    answer = project.run("alerts", "rules")

    assert answer.code == 2 and "there is no metric 'latency'; there are: pending," in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_alerts_are_read_over_http_by_those_of_no_tenant(admin: AdminApi) -> None:
    await put(admin.client.store, OVER, LATE)

    await admin.client.store.alerts.note_check(timedelta(0))
    assert (await admin.get("/admin/alerts/")).json()["watched"] is False
    await admin.client.store.alerts.note_check(timedelta(hours=1))
    reported = (await admin.get("/admin/alerts/")).json()

    assert datetime.fromisoformat(reported["watched"]) >= NOW
    assert (reported["firing"], [one["rule"] for one in reported["alerts"]]) == (1, ["late", "backlog"])
    late = reported["alerts"][0]
    assert (late["series"], late["value"], late["above"], late["metric"]) == (
        "queue=mail", 4000.5, 3600, "oldest_pending_seconds",
    )  # fmt: skip
    assert late["runbook"] == "docs/runbooks/queue-backing-up.md"
    assert (await admin.get("/admin/alerts/", "acme manager")).status_code == 403
