"""The process of a job has the worker's environment without Dutiful's own secrets, unless its kind asks for them."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from running_workers import final

from dutiful import Dutiful, JobRecord, UsageError
from faults import Fleet

KEY = base64.b64encode(b"the key of all our webhooks").decode()
DIRECT = "postgresql://shop:direct-password@db/shop"
LANE = "one=3:*"
KINDS = ("environment", "whole_environment", "enqueues", "enqueues_with_secrets", "in_thread")


@pytest.fixture
async def app(migrated_path: Path, tmp_path: Path) -> AsyncIterator[Dutiful]:
    """Enqueues for a worker of secret_jobs, which runs in `tmp_path`."""
    url = f"sqlite:///{migrated_path}"
    environment = {
        "DUTIFUL_WEBHOOK_SECRETS": f"whsec_{KEY}",
        "DUTIFUL_DIRECT_URL": DIRECT,
        "DUTIFUL_CPU_PROCESSES": "1",
        "SHOP_PASSWORD": "the shop's own",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    async with Dutiful(url) as app, Fleet("secret_jobs:app", url, folder=tmp_path, environment=environment) as fleet:
        for name in (*KINDS, "child"):
            _declare(app, name)
        fleet.start("--lane", LANE)
        yield app


def _declare(app: Dutiful, name: str) -> None:
    @app.job(name=name)
    def handler() -> None: ...


async def ran(app: Dutiful, kind: str) -> JobRecord:
    return await final(app, await app.enqueue(kind))


async def test_a_process_has_no_secret_of_dutiful_in_its_environment(app: Dutiful, migrated_path: Path) -> None:
    record = await ran(app, "environment")
    assert record.result is not None, record.errors
    for seen in record.result:
        assert str(migrated_path) not in seen and KEY not in seen and "direct-password" not in seen
        assert LANE not in seen  # an option of the command line, as --database-url is one
        assert "the shop's own" in seen and "DUTIFUL_CPU_PROCESSES" in seen  # the rest is there
    # A kind that asks for them has them, in a process that the other one does not share.
    for kind in ("whole_environment", "environment", "whole_environment"):
        record = await ran(app, kind)
        assert [KEY in seen for seen in record.result] == [kind == "whole_environment"] * 2
        assert (LANE in record.result[0]) == (kind == "whole_environment")
        assert [str(migrated_path) in seen for seen in record.result] == [kind == "whole_environment"] * 2
    assert (await ran(app, "in_thread")).result == f"sqlite:///{migrated_path}"


async def test_a_process_without_the_address_enqueues_nowhere(app: Dutiful, tmp_path: Path) -> None:
    record = await ran(app, "enqueues")
    assert record.errors and record.errors[0]["type"] == "UsageError"
    assert record.errors[0]["message"] == (
        "the address of the database is withheld from this process of a job: if its handler needs it, declare the kind "
        "with @app.job(process=True, inherit_secrets=True)"
    )
    with_secrets = await ran(app, "enqueues_with_secrets")
    assert with_secrets.result is not None and await app.find(with_secrets.result) is not None


def test_only_a_process_can_inherit_secrets() -> None:
    with pytest.raises(UsageError, match="inherit_secrets=True is for process=True"):

        @Dutiful().job(inherit_secrets=True)
        def plain() -> None: ...
