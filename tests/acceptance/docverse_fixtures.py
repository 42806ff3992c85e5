"""The documentation host, which several files of tests name as their plugin: installed once, empty for each test."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docverse import CleanDocverse, Host, hosting, installed

from databases import Postgres


@pytest.fixture(scope="session")
def clean_docverse(postgres18: Postgres) -> Iterator[CleanDocverse]:
    with installed(postgres18) as clean:
        yield clean


@pytest.fixture(params=["store", "arq"])
async def delivered(
    clean_docverse: CleanDocverse, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Host]:
    """The host with each delivery."""
    redis_url = request.getfixturevalue("empty_redis") if request.param == "arq" else None
    async with hosting(clean_docverse.reset(), tmp_path, redis_url=redis_url) as host:
        yield replace(host, config=replace(host.config, redis_url=redis_url))


@pytest.fixture
async def host(clean_docverse: CleanDocverse, tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(clean_docverse.reset(), tmp_path) as host:
        yield host
