"""Documentation that examples/docverse serves, in a real browser: its switcher leads from edition to edition."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "acceptance"))

from chromium import available, browsing
from docverse import CleanDocverse, Host, hosting, installed

from databases import Postgres, missing
from examples.docverse.sample_data import pages

SELECT = "document.querySelector('nav select')"


@pytest.fixture
def clean(postgres18: Postgres) -> Iterator[CleanDocverse]:
    if reason := available():
        missing(reason)
    with installed(postgres18) as clean:
        yield clean


async def test_a_reader_switches_from_an_edition_to_another(clean: CleanDocverse, tmp_path: Path) -> None:
    async with hosting(clean.reset(), tmp_path) as host, host.working(), browsing(tmp_path / "profile") as browser:
        await _publish(host)
        page = await browser.open(f"{host.config.edge_url}/rubin/guide/")
        await page.until(f"{SELECT}?.selectedOptions[0]?.text === 'Guide'")
        chosen = f"[...{SELECT}.options].find(one => one.text === 'v2.x').value"
        await page.evaluate(f"{SELECT}.value = {chosen}; {SELECT}.dispatchEvent(new Event('change'))")
        await page.until("document.querySelector('footer')?.textContent === 'rubin/guide, v2.1.0'")
        await page.until(f"{SELECT}?.selectedOptions[0]?.text === 'v2.x'")
        await page.click("nav a")
        await page.until("document.querySelectorAll('tbody tr').length === 4")
        assert page.problems == []


async def _publish(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    for ref in ("main", "v2.1.0"):
        await project.publish(ref, pages("rubin/guide", ref))
