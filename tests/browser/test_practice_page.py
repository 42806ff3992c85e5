"""The desk of examples/practice in a real browser: a manager sees mail come in, and reviews a dead letter."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from chromium import Page, available, browsing

from databases import missing
from examples.practice.fake_services import FakeServices
from examples.practice.firms import Firms
from examples.practice.sample_data import ADA, CONNECTION, add_people, create_sample_data
from examples.practice.service import practice_app
from examples.practice.site import practice_site
from examples.practice.users import SAMPLE_PASSWORD
from examples.serving import serving

HERE = 123


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    if reason := available():
        missing(reason)
    firms = Firms(tmp_path / "firms")
    add_people(firms)
    create_sample_data(firms, HERE)
    async with FakeServices().open() as addresses:
        app = practice_app(f"sqlite:///{tmp_path}/jobs.db", firms, addresses)
        async with (
            app,
            app.embedded(grace="5s"),
            serving(practice_site(app, firms, addresses)) as url,
            browsing(tmp_path / "profile") as browser,
        ):
            page = await browser.open(url)
            yield page
            assert page.problems == []
    firms.close()


async def sign_in(page: Page, name: str) -> None:
    await page.until("document.querySelector('#sign-in')?.hidden === false")
    for field, value in (("name", name), ("password", SAMPLE_PASSWORD)):
        await page.evaluate(f"document.querySelector('#sign-in [name={field}]').value = '{value}'")
    await page.click("#sign-in .main")
    await page.until("document.querySelector('#desk')?.hidden === false")


def jobs(status: str) -> str:
    return f"document.querySelectorAll('#jobs [data-status={status}][data-job]').length"


@pytest.mark.req("W40", "W43", "W47", "W48", "W54")
async def test_a_manager_sees_mail_come_in_and_reviews_a_dead_letter(page: Page) -> None:
    await sign_in(page, "mary")
    await page.click("#write .main")
    await page.until("document.querySelector('#messages .client')?.textContent === 'Ada'")
    await page.until(f"{jobs('completed')} === 2")

    await page.evaluate("document.querySelector('#write [name=damaged]').checked = true")
    await page.click("#write .main")
    await page.until("document.querySelectorAll('#letters li').length === 1")
    assert "no usable From" in await page.evaluate("document.querySelector('#letters .error').textContent")
    assert await page.evaluate(jobs("failed")) == 1

    await page.evaluate(f"document.querySelector('#letters [name=sender]').value = '{ADA}'")
    await page.click("#letters [value=reprocess]")
    await page.until("document.querySelectorAll('#letters li').length === 0")
    await page.until("document.querySelectorAll('#messages .client').length === 2")
    trail = await page.evaluate("[...document.querySelectorAll('#trail b')].map(one => one.textContent)")
    assert trail == ["job_dlq_reprocess_success", "job_dlq_reprocess_requested"]

    # What is no message is run again as it is.
    payload = {
        "tenant_id": HERE,
        "correlation_id": str(uuid4()),
        "idempotency_key": "gone",
        "connection_id": CONNECTION,
    }
    body = {"kind": "email_ingestion_fetch", "payload": {**payload, "external_message_id": "msg_gone"}}
    asked = {"method": "POST", "headers": {"content-type": "application/json"}, "body": json.dumps(body)}
    await page.evaluate(f"fetch('/api/jobs/admin/jobs/', {json.dumps(asked)}).then(answer => answer.status)")
    await page.until("document.querySelector('#letters .type')?.textContent === 'email ingestion fetch'")
    assert await page.evaluate("document.querySelector('#letters .repair').hidden")
    await page.click("#letters [value=reprocess]")
    await page.until(
        "[...document.querySelectorAll('#jobs .meta')].some(one => one.textContent.includes('gone_retry_'))"
    )

    await page.click("#sign-out")
    await sign_in(page, "max")
    await page.until("document.querySelectorAll('#messages li').length === 2")
    assert await page.evaluate("document.querySelector('#review').hidden && document.querySelector('#work').hidden")


async def test_why_a_message_was_refused_stays_until_the_next_one(page: Page) -> None:
    await sign_in(page, "mary")
    await page.evaluate("document.querySelector('#write [name=sender]').value = 'a'.repeat(61) + '@client.example'")
    assert await page.evaluate("document.querySelector('#write [name=sender]').maxLength") == 60
    await page.click("#write .main")
    await page.until("document.querySelector('#problem').textContent.startsWith('sender: ')")
    looks = "performance.getEntriesByType('resource').filter(one => one.name.endsWith('/site/mail')).length"
    await page.until(f"{looks} >= {await page.evaluate(looks) + 2}")
    assert await page.evaluate("document.querySelector('#problem').textContent.startsWith('sender: ')")
    page.problems.clear()  # the refusal

    await page.evaluate("document.querySelector('#write [name=sender]').value = 'ada@client.example'")
    await page.click("#write .main")
    await page.until("document.querySelector('#problem').hidden")


async def test_a_discarded_message_is_on_record_with_the_reason_that_was_given(page: Page) -> None:
    await sign_in(page, "mary")
    for notes in ("", "an advertisement"):
        await page.click("#write [name=damaged]")
        await page.click("#write .main")
        await page.until("document.querySelectorAll('#letters li').length === 1")
        await page.evaluate(f"document.querySelector('#letters [name=notes]').value ||= '{notes}'")
        await page.click("#letters [value=discard]")
        await page.until("document.querySelectorAll('#letters li').length === 0")
    await page.until("document.querySelectorAll('#trail li').length === 4")
    trail = await page.evaluate("[...document.querySelectorAll('#trail .meta')].map(one => one.textContent)")
    assert [line.partition(" · ")[2] for line in trail] == [*2 * ["an advertisement"], *2 * [""]]


async def test_the_next_person_finds_nothing_of_a_session_that_has_ended(page: Page) -> None:
    await sign_in(page, "mary")
    await page.click("#write [name=damaged]")
    await page.click("#write .main")
    await page.until("document.querySelectorAll('#letters li').length === 1")
    await page.evaluate("fetch('/site/session', {method: 'DELETE'}).then(answer => answer.status)")  # as in another tab
    await page.until("document.querySelector('#sign-in').hidden === false")
    page.problems.clear()  # the look that found out
    text = await page.evaluate("document.body.textContent")
    assert "mary, manager" not in text and "no usable From" not in text and "msg_" not in text


async def test_a_server_that_went_away_is_forgotten_when_it_is_back(page: Page) -> None:
    await sign_in(page, "mary")
    await page.call("Network.enable")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await page.call("Network.emulateNetworkConditions", offline=True, **offline)
    await page.until("document.querySelector('#problem').textContent.startsWith('the server does not answer')")
    await page.click("#sign-out")
    await page.until("document.querySelector('#problem').dataset.of === 'act'")
    await page.call("Network.clearBrowserCookies")  # it was started again, and knows no session
    await page.call("Network.emulateNetworkConditions", offline=False, **offline)
    await page.until("document.querySelector('#sign-in').hidden === false")
    assert await page.evaluate("document.querySelector('#problem').hidden")
    assert [one for one in page.problems if "Uncaught" in one] == []
    page.problems.clear()  # what was not answered
