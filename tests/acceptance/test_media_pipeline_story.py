"""The example media_pipeline runs its story, and its web site answers."""

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from bad_bodies import check_refusals
from media import DEADLINE, Service, listening, service

from dutiful import Context
from examples.media_pipeline.queue import JobQueue
from examples.media_pipeline.site import site
from examples.serving import serving

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def media(sqlite_path: Path, tmp_path: Path) -> AsyncIterator[Service]:
    async with service(f"sqlite:///{sqlite_path}", tmp_path) as made:
        yield made


@asynccontextmanager
async def visited(media: Service) -> AsyncIterator[tuple[JobQueue, httpx2.AsyncClient]]:
    """The queue behind the site, and a visitor."""
    async with (
        media.queue() as queue,
        serving(site(queue, media.url, ["dawn.ppm"])) as url,
        httpx2.AsyncClient(base_url=url) as http,
    ):
        yield queue, http


@pytest.mark.req("J10", "J11", "J39", "J44", "J52", "J65", "J76")
def test_the_story_ends_by_itself_and_adds_up() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}
    command = [sys.executable, "-m", "examples.media_pipeline"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("✓") == 9 and "✗" not in done.stdout


@pytest.mark.req("J12", "J15", "J47", "J53")
async def test_the_site_takes_orders_and_cancellations(media: Service) -> None:
    async with visited(media) as (queue, http), listening(queue) as listener:
        made = await http.post("/jobs", json={"file": "dawn.ppm"})
        assert made.status_code == 201
        job_id = made.json()["id"]
        await listener.until("job:completed", job_id)
        assert (await http.get(f"/jobs/{job_id}")).json()["status"] == "completed"
        assert (await http.post(f"/jobs/{job_id}/cancel")).status_code == 409

        later = (await http.post("/jobs", json={"file": "dawn.ppm", "delay": 3600})).json()["id"]
        assert (await http.get(f"/jobs/{later}")).json()["status"] == "pending"
        assert (await http.post(f"/jobs/{later}/cancel")).status_code == 202
        await listener.until("job:cancelled", later)
        assert [job["id"] for job in (await http.get("/jobs")).json()["jobs"]] == [later, job_id]


async def test_the_site_refuses_what_is_none_of_its_business(media: Service) -> None:
    async with visited(media) as (queue, http):
        order, missing = {"file": "dawn.ppm"}, "01900000-0000-7000-8000-000000000000"
        assert (await http.post("/jobs", json={"file": "../secret"})).status_code == 422
        assert (await http.post("/jobs", json={**order, "delay": -1})).status_code == 422
        await check_refusals(http, "POST", "/jobs", {**order, "delay": 0})
        assert (await http.get(f"/jobs/{missing}")).status_code == 404
        assert (await http.post(f"/jobs/{missing}/cancel")).status_code == 404
        assert (await http.get("/jobs/nonsense")).status_code == 422
        elsewhere = {"sec-fetch-site": "cross-site"}
        assert (await http.post("/jobs", json=order, headers=elsewhere)).status_code == 403
        assert (await http.get("/", headers={"host": "evil.example"})).status_code == 400
        page = await http.get("/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert await queue.jobs() == []


@pytest.mark.req("J55", "J57")
async def test_the_sites_events_are_of_this_queue_only(media: Service) -> None:
    async with visited(media) as (_, http):
        since = (await http.get("/jobs")).json()["at"]
        job_id = (await http.post("/jobs", json={"file": "dawn.ppm"})).json()["id"]
        received, of_jobs = list[str](), set[bool]()
        async with http.stream("GET", "/events", params={"since": since}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line.startswith("data:") and "job_id" in line:
                    of_jobs.add(job_id in line)
                if line.startswith("event:"):
                    received.append(line.removeprefix("event: "))
                if received and received[-1] == "webhook_delivered":
                    break
        other = await http.get("/events", params={"kind": "another", "type": "nonsense"})
        assert other.status_code == 422
    assert of_jobs == {True}, "each names its job, and there is no other"
    assert [name for name in received if name != "progress"] == [
        "enqueued",
        "started",
        *3 * ["phase_completed"],
        "completed",
        "webhook_delivered",
    ]


@pytest.mark.req("J58")
async def test_the_sites_pings_come_while_events_do(media: Service) -> None:
    async def chatty(ctx: Context) -> None:
        for number in itertools.cycle(range(100)):
            ctx.progress(number)
            await asyncio.sleep(0.02)

    # Progress is stored about four times a second, so the stream is never silent for as long as a ping takes.
    queue = media.queue(chatty, ping=timedelta(seconds=0.6))
    async with queue, serving(site(queue, media.url, [])) as url, httpx2.AsyncClient(base_url=url) as http:
        job_id = await queue.enqueue({})
        names: list[str] = []
        async with asyncio.timeout(DEADLINE), http.stream("GET", "/events") as response:
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    names.append(line.removeprefix("event: "))
                if names.count("ping") == 2:
                    break
        assert await queue.cancel(job_id)
    assert names.count("progress") >= 2
