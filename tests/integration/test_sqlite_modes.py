"""Who may read the files of SQLite: only their owner, because payloads are in them."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dutiful.stores.sqlite import SqliteStore
from dutiful.stores.sqlite.engine.driver import LIBRARIES, Driver

DRIVERS: list[Driver] = ["apsw", "sqlite3"]
FILES = {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-turn", "jobs.db-lock", "jobs.db-leader"}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_new_files_are_for_their_owner_only(tmp_path: Path, driver: Driver, mask: int) -> None:
    store = SqliteStore(tmp_path / "jobs.db", driver=driver)
    with umask(mask):
        await store.open()
        try:
            assert modes(tmp_path) == dict.fromkeys(FILES, 0o600)
        finally:
            await store.close()
    assert set(modes(tmp_path).values()) == {0o600}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_file_that_exists_keeps_its_mode_and_those_beside_it_get_the_same(
    tmp_path: Path, driver: Driver
) -> None:
    (tmp_path / "jobs.db").touch()
    (tmp_path / "jobs.db").chmod(0o660)
    (tmp_path / "jobs.db-lock").touch()
    (tmp_path / "jobs.db-lock").chmod(0o666)
    store = SqliteStore(tmp_path / "jobs.db", driver=driver)
    with umask(0o077):
        await store.open()
        try:
            assert modes(tmp_path) == {**dict.fromkeys(FILES, 0o660), "jobs.db-lock": 0o666}
        finally:
            await store.close()


async def test_a_link_to_a_file_that_is_missing_makes_that_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").symlink_to(tmp_path / "elsewhere.db")
    store = SqliteStore(tmp_path / "jobs.db")
    with umask(0):
        await store.open()
        await store.close()
    assert stat.S_IMODE((tmp_path / "elsewhere.db").stat().st_mode) == 0o600


def test_a_file_is_made_once_in_a_process_and_not_touched_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open and close it beside SQLite's own connection would drop that one's locks."""
    closed: list[int] = []
    close = os.close

    def counted(fd: int) -> None:
        closed.append(fd)
        close(fd)

    monkeypatch.setattr(os, "close", counted)
    first = LIBRARIES.enter(str(tmp_path / "jobs.db"), "apsw", make=True)
    assert len(closed) == 1
    (tmp_path / "jobs.db").rename(tmp_path / "moved.db")
    LIBRARIES.enter(str(tmp_path / "jobs.db"), "apsw", make=True)()
    assert len(closed) == 1 and not (tmp_path / "jobs.db").exists()
    first()
