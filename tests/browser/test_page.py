"""The live page of examples/media_pipeline in a real browser."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from chromium import Page, available, browsing

from databases import missing
from examples.media_pipeline.media import sample_files
from examples.media_pipeline.origin import Origin
from examples.media_pipeline.service import media_queue, order
from examples.media_pipeline.site import site
from examples.media_pipeline.story import OLD
from examples.serving import serving


@pytest.fixture
def origin() -> Origin:
    return Origin(sample_files(240, 200), OLD)


@pytest.fixture
async def page(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    if reason := available():
        missing(reason)
    monkeypatch.delenv("DUTIFUL_DATABASE_URL", raising=False)
    async with (
        serving(origin.asgi) as url,
        media_queue(tmp_path, webhook_url=f"{url}/hooks", webhook_secrets=[OLD]) as queue,
        serving(site(queue, url, list(origin.files))) as address,
        browsing(tmp_path / "profile") as browser,
    ):
        page = await browser.open(address)
        await page.until("document.querySelector('#link')?.dataset.state === 'live'")
        yield page
        assert page.problems == []


def card(file: str) -> str:
    """The script that finds a job by its file."""
    return f"[...document.querySelectorAll('#jobs > li')].find(li => li.querySelector('h3').textContent === '{file}')"


def status(file: str) -> str:
    return f"{card(file)}?.dataset.status"


@pytest.mark.req("J30", "J47", "J53", "J55", "J56")
async def test_the_page_shows_jobs_live_cancels_one_and_survives_a_reload(page: Page, origin: Origin) -> None:
    origin.hold("files/dawn.ppm")
    origin.hold("files/dunes.ppm")
    for file in ("dawn.ppm", "dunes.ppm", "weather.csv"):
        await page.click(f"[data-file='{file}']")
    await page.until(f"{status('weather.csv')} === 'completed'")
    half = f"{card('dawn.ppm')}?.querySelector('.whole output').textContent === '17 %'"
    await page.until(half)
    assert await page.evaluate(f"{card('dawn.ppm')}.querySelector('.phases progress').value") == pytest.approx(
        50, abs=1
    )

    await page.call("Page.reload")
    await page.until(f"{status('dawn.ppm')} === 'active' && {half}")
    await page.until("document.querySelector('#link').dataset.state === 'live'")
    assert await page.evaluate("document.querySelectorAll('#jobs > li').length") == 3

    button = f"{card('dunes.ppm')}.querySelector('.cancel')"
    asked_once = await page.evaluate(f"{button}.click(), {button}.disabled")
    assert asked_once, "the second half of a double click would be answered with an error"
    await page.until(f"{status('dunes.ppm')} === 'cancelled'")
    assert await page.evaluate(f"{button}.hidden")

    origin.release("files/dawn.ppm")
    await page.until(f"{card('dawn.ppm')}.querySelector('.whole output').textContent === '100 %'")
    await page.until(f"{card('dawn.ppm')}.querySelector('img').naturalWidth === 240")
    await page.until(f"{card('dawn.ppm')}.querySelector('.status').textContent === 'completed, webhook sent'")
    origin.release("files/dunes.ppm")


async def test_jobs_of_a_server_that_was_started_afresh_are_shown_and_no_others(tmp_path: Path) -> None:
    """Its database was temporary: the page must not go on showing jobs that there are no more."""
    if reason := available():
        missing(reason)
    url = "http://127.0.0.1:9"  # nothing is fetched
    async with browsing(tmp_path / "profile") as browser:
        async with (
            media_queue(tmp_path / "first", database_url=f"sqlite:///{tmp_path}/first.db") as queue,
            serving(site(queue, url, ["dawn.ppm"])) as address,
        ):
            gone = await queue.enqueue(order(url, "dawn.ppm"), scheduled_at=datetime.now(UTC) + timedelta(hours=1))
            page = await browser.open(address)
            await page.until(f"document.querySelector('#jobs > li')?.dataset.id === '{gone}'")
            await page.until("document.querySelector('#link').dataset.state === 'live'")
        await page.until("document.querySelector('#link').dataset.state === 'lost'")
        await page.click("[data-file='dawn.ppm']")
        await page.until("document.querySelector('#problem').textContent.startsWith('the server does not answer')")

        async with (
            media_queue(tmp_path / "second", database_url=f"sqlite:///{tmp_path}/second.db") as queue,
            serving(site(queue, url, ["dawn.ppm"]), int(address.rpartition(":")[2])),
        ):
            made = await queue.enqueue(order(url, "dawn.ppm"), scheduled_at=datetime.now(UTC) + timedelta(hours=1))
            await page.until("document.querySelector('#link').dataset.state === 'live'")
            await page.until(f"document.querySelector('#jobs > li')?.dataset.id === '{made}'")
            await page.until("document.querySelectorAll('#jobs > li').length === 1")
