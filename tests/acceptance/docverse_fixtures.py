"""The documentation host, which several files of tests name as their plugin: installed once, empty for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from docverse import CleanDocverse, Host, hosting, installed

from databases import Postgres


@pytest.fixture(scope="session")
def clean_docverse(postgres18: Postgres) -> Iterator[CleanDocverse]:
    with installed(postgres18) as clean:
        yield clean


@pytest.fixture
async def host(clean_docverse: CleanDocverse, tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(clean_docverse.reset(), tmp_path) as host:
        yield host
