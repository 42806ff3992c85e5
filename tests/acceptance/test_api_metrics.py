"""/metrics as a scraper meets it: who may, in which format, and at what cost."""

import asyncio
import re
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from api import AdminApi, admin_api
from command_line import Project
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as openmetrics

from dutiful import Dutiful, __version__
from dutiful.core.metrics.catalogue import METRICS
from dutiful.observe import measure as observe
from dutiful.observe import prometheus
from dutiful.web import create_app
from dutiful.web.api import metrics

Reads = Callable[[str], Iterable[Metric]]
read_text: Reads = parser.text_string_to_metric_families
read_openmetrics: Reads = openmetrics.text_string_to_metric_families
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app, public_status=True) as admin:
        yield admin


async def scrape(admin: AdminApi, who: str | None = "viewer", **headers: str) -> httpx2.Response:
    if who is not None:
        headers["authorization"] = f"Bearer {admin.tokens.get(who, who)}"
    return await admin.http.get("/metrics", headers=headers)


def read(families: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(sample.name, frozenset(sample.labels.items())): sample.value for one in families for sample in one.samples}


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.mark.req("L39", "L76", "L77", "L78", "L79", "L80")
async def test_a_scrape_has_all_metrics(admin: AdminApi) -> None:
    await admin.client.store.breakers.open('mail "x" \\ y', timedelta(hours=1))
    answer = await scrape(admin)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    found = read(read_text(answer.text))
    assert found[key("dutiful_info", version=__version__)] == 1
    assert found[key("dutiful_attempts_total", kind="fetch", outcome="failed")] == 4
    assert found[key("dutiful_attempts_total", kind="greet", outcome="completed")] == 2
    assert found[key("dutiful_error_rate", kind="fetch")] == 1
    assert found[key("dutiful_error_rate", kind="greet")] == 0
    assert found[key("dutiful_run_seconds_count", kind="fetch")] == 4
    assert found[key("dutiful_run_seconds_bucket", kind="fetch", le="+Inf")] == 4
    assert found[key("dutiful_wait_seconds_count", kind="greet")] == 2
    assert found[key("dutiful_scheduled", queue="default", kind="greet")] == 2
    assert found[key("dutiful_dead_letters")] == 4
    assert found[key("dutiful_payload_bytes_total", kind="greet")] > 0
    assert found[key("dutiful_estimated", metric="pending")] == 0
    assert found[key("dutiful_breaker_open", breaker='mail "x" \\ y')] == 1
    assert found[key("dutiful_breaker_trips_total", breaker='mail "x" \\ y')] == 0, "people are no trip"
    for name in ("run", "wait"):
        buckets = [(float(dict(labels)["le"]), value) for (metric, labels), value in found.items()
                   if metric == f"dutiful_{name}_seconds_bucket" and ("kind", "fetch") in labels]  # fmt: skip
        counts = [value for _, value in sorted(buckets)]
        assert counts == sorted(counts) and counts[-1] == 4, "each edge counts those below it, too"


async def test_both_formats_say_the_same_and_keep_to_the_rules_of_names(
    admin: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FRESH", 3600.0)  # so that both are of one moment
    plain, modern = await scrape(admin), await scrape(admin, accept=OPENMETRICS)
    assert modern.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = list(read_openmetrics(modern.text))
    assert read(read_text(plain.text)) == read(families)
    shown = {family.name for family in families}
    assert {f"dutiful_{name}" for name in METRICS if name not in ("pending_total", "undelivered")} <= shown
    for family in families:
        assert family.documentation, f"{family.name} has no help"
        assert family.type in ("gauge", "counter", "histogram", "info")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
    for odd in ("application/openmetrics-text;q=0", "*/*", "application/openmetrics-textile", ";;,;=", "text/plain;v"):
        assert (await scrape(admin, accept=odd)).headers["content-type"].startswith("text/plain"), odd


async def test_it_is_for_those_with_a_token_and_without_a_tenant(admin: AdminApi) -> None:
    for secret in (None, "wrong", "expired", "revoked"):
        answer = await scrape(admin, secret)
        assert answer.status_code == 401, "even where a job's status is public"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert (await scrape(admin, "acme admin")).status_code == 403
    for role in ("viewer", "staff", "manager", "admin"):
        assert (await scrape(admin, role)).status_code == 200
    assert (await admin.http.post("/metrics")).status_code == 405


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_open_metrics_need_no_token(app: Dutiful) -> None:
    async with admin_api(app, open_metrics=True) as admin:
        assert (await scrape(admin, None)).status_code == 200
        assert (await admin.get("/admin/queues/", None)).status_code == 401, "nothing else is open"


async def test_those_who_ask_at_once_share_one_measurement(admin: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, take_snapshot = 0, observe.take_snapshot

    async def counting(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await take_snapshot(*args, **more)

    monkeypatch.setattr("dutiful.operator.metrics.take_snapshot", counting)
    monkeypatch.setattr(metrics, "FRESH", 3600.0)
    answers = await asyncio.gather(*(scrape(admin) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200} and looks == 1
    await scrape(admin)
    assert looks == 1, "it is still fresh"
    monkeypatch.setattr(metrics, "FRESH", 0.0)
    monkeypatch.setattr(metrics, "SHARE", 0)
    api = create_app(admin.app)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api), base_url="http://here") as http:
        for _ in range(2):
            await http.get("/metrics", headers={"authorization": f"Bearer {admin.tokens['viewer']}"})
    assert looks == 3, "a stale measurement is not served"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_page_that_took_long_serves_for_longer(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, now, page = 0, 1000.0, prometheus.page

    def slow(*args: Any) -> Any:
        nonlocal pages, now
        pages, now = pages + 1, now + 0.5
        return page(*args)

    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(prometheus, "page", slow)
    async with admin_api(app, open_metrics=True) as admin:
        for later, made in ((0.0, 1), (4.0, 1), (1.0, 2), (4.0, 2)):
            now += later
            for accept in (OPENMETRICS, "*/*"):
                assert (await scrape(admin, None, accept=accept)).status_code == 200
            assert pages == made


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_the_event_loop_is_free_while_a_page_is_written(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, answered, page = threading.Event(), threading.Event(), prometheus.page

    def slow(*args: Any) -> Any:
        writing.set()
        assert answered.wait(60), "other requests were not served"
        return page(*args)

    monkeypatch.setattr(prometheus, "page", slow)
    async with admin_api(app, open_metrics=True) as admin:
        scraping = asyncio.create_task(scrape(admin, None))
        await asyncio.to_thread(writing.wait, 60)
        assert (await admin.http.get("/nothing")).status_code == 404
        answered.set()
        assert (await scraping).status_code == 200


async def test_a_database_that_cannot_be_reached_is_no_empty_answer() -> None:
    app = Dutiful("postgresql://nobody@127.0.0.1:1/nowhere")
    transport = httpx2.ASGITransport(app=create_app(app, open_metrics=True), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 503 and answer.headers["content-type"] == "application/problem+json"
    app.close_sync()


def test_a_server_with_open_metrics_needs_no_token(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db").write_jobs()
    with (tmp_path / "log").open("wb") as log:
        command = project.command("server", "--port", "0", "--open-metrics")
        server = subprocess.Popen(command, cwd=tmp_path, env=project.environment(), stdout=log, stderr=log)
    try:
        until = time.monotonic() + 120
        while not (found := re.search(r"running on (http://[\d.:]+)", (tmp_path / "log").read_text())):
            assert server.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.02)
        page = httpx2.get(f"{found[1]}/metrics", timeout=60)
        assert page.status_code == 200 and "dutiful_workers 0.0" in page.text
        assert httpx2.get(f"{found[1]}/api/jobs/admin/queues/", timeout=60).status_code == 401
    finally:
        server.kill()
        server.wait()
