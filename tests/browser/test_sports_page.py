"""The register of examples/sports_sites in a real browser: a site is edited, and its jobs are seen to move."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from chromium import Page, available, browsing

from databases import missing
from examples.serving import serving
from examples.sports_sites.config import Config
from examples.sports_sites.fake_services import FakeServices
from examples.sports_sites.sample_data import fill
from examples.sports_sites.service import sports_app
from examples.sports_sites.site import sports_site


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    if reason := available():
        missing(reason)
    async with FakeServices().open() as addresses:
        config = Config(folder=tmp_path, services=addresses.services, smtp_port=addresses.smtp_port)
        fill(tmp_path)
        app = sports_app(
            config, f"sqlite:///{tmp_path}/jobs.db", breaker_failures=1, breaker_open_for="1s", retry_base="100ms"
        )
        async with (
            app,
            app.embedded(grace="5s"),
            serving(sports_site(app, config)) as url,
            browsing(tmp_path / "profile") as browser,
        ):
            page = await browser.open(url)
            yield page
            assert page.problems == []


def job(kind: str) -> str:
    """The status of a job of the newest edit."""
    return f"document.querySelector('#edits > li [data-type={kind}]')?.dataset.status"


def breaker(service: str) -> str:
    return f"document.querySelector('[data-service={service}] .pill')?.dataset.status"


@pytest.mark.req("L5", "L7", "L57", "L98")
async def test_an_edit_is_followed_by_its_jobs_and_a_failing_service_by_its_breaker(page: Page) -> None:
    await page.until("document.querySelectorAll('.site').length === 4")
    await page.click("[data-site='12347']")
    await page.evaluate("document.querySelector('#edit [name=name]').value = 'Old school field'")
    await page.click("#edit .main")
    for kind in ("integration", "webhook", "analysis", "elevation", "email"):
        await page.until(f"{job(kind)} === 'completed'")
    assert await page.evaluate("document.querySelector('[data-type=webhook]').style.getPropertyValue('--depth')") == "1"
    shown = "document.querySelector('[data-site=\"12347\"]').textContent"
    await page.until(f"{shown}.includes('Old school field') && !{shown}.includes('–')")
    await page.until("document.querySelector('#mails b')?.textContent === 'Old school field has changed'")

    await page.click("[data-service=grid] button")
    await page.until("document.querySelector('[data-service=grid] button').textContent === 'Repair'")
    await page.click("#edit .main")
    await page.until(f"['open', 'half_open'].includes({breaker('grid')})")
    await page.until(f"document.querySelectorAll('#edits > li').length === 2 && {job('email')} === 'completed'")
    assert await page.evaluate(job("analysis")) != "completed"
    await page.until("document.querySelector('[data-service=grid] .meta').textContent.endsWith('1 job waits')")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"

    # However long a person takes, nothing is given up: three attempts would be spent by now.
    attempts = "edits[0].jobs.find((one) => one.type === 'analysis').attempts"
    await page.until(f"fetch('/api/edits').then((answer) => answer.json()).then((edits) => {attempts} > 3)")
    assert await page.evaluate(job("analysis")) != "dead"

    await page.click("[data-service=grid] button")
    await page.until(f"{job('analysis')} === 'completed' && {breaker('grid')} === 'closed'")
    assert await page.evaluate("document.querySelector('[data-service=grid] .pill').textContent") == "breaker closed"


LOOKS = "performance.getEntriesByType('resource').filter(one => one.name.endsWith('/api/outside')).length"


async def look_again(page: Page) -> None:
    """Waits until the page has asked the server twice more, so that it has drawn the first answer."""
    await page.until(f"{LOOKS} >= {await page.evaluate(LOOKS) + 2}")


async def test_a_slow_click_and_the_keyboard_reach_what_the_page_draws_again(page: Page) -> None:
    await page.until("document.querySelectorAll('#services button').length === 4")
    await page.press("[data-service=mail] button")
    await look_again(page)
    await page.release("[data-service=mail] button")
    await page.until("document.querySelector('[data-service=mail] button').textContent === 'Repair'")

    await page.evaluate("document.querySelector('[data-service=mail] button').focus()")
    await look_again(page)
    focused = "document.activeElement.closest('[data-service]')?.dataset.service"
    assert await page.evaluate(focused) == "mail"
    await page.evaluate("document.activeElement.click()")
    await page.until("document.querySelector('[data-service=mail] button').textContent === 'Break'")
    assert await page.evaluate(focused) == "mail"


async def test_why_an_edit_was_refused_stays_until_the_next_one(page: Page) -> None:
    await page.until("document.querySelectorAll('.site').length === 4")
    await page.evaluate("document.querySelector('#edit [name=east]').value = 900000")
    assert not await page.evaluate("document.querySelector('#edit').checkValidity()"), "the browser knows the bounds"
    await page.evaluate("document.querySelector('#edit [name=east]').removeAttribute('max')")
    await page.click("#edit .main")
    await page.until("document.querySelector('#problem').textContent.startsWith('east: ')")
    await look_again(page)
    assert await page.evaluate("document.querySelector('#problem').textContent.startsWith('east: ')")
    page.problems.clear()  # the refusal

    await page.evaluate("document.querySelector('#edit [name=east]').value = 385000")
    await page.click("#edit .main")
    await page.until("document.querySelector('#problem').hidden")
