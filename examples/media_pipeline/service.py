"""The media service: a JobQueue with the three phases, beside an origin."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.media_pipeline.config import Config
from examples.media_pipeline.phases import PHASES, Workshop
from examples.media_pipeline.queue import JobQueue


def media_queue(folder: Path, **changes: Any) -> JobQueue:
    """All it keeps is in `folder`, unless DUTIFUL_DATABASE_URL names another database."""
    workshop = Workshop(folder / "files")
    config = Config(
        phases=PHASES,
        resources=workshop.resources,
        database_url=os.environ.get("DUTIFUL_DATABASE_URL") or f"sqlite:///{folder.absolute()}/media.db",
        # A schema of its own, for retention deletes whatever is in it.
        schema=os.environ.get("DUTIFUL_SCHEMA", "media_pipeline"),
        webhook_networks=("127.0.0.0/8",),
        on_delete=workshop.clear,
    )
    return JobQueue(replace(config, **changes))


def order(origin: str, file: str, product: str | None = None) -> dict[str, str]:
    """The data of a job: fetch this file, and hand in what is made of it under that name."""
    return {"source": f"{origin}/files/{file}", "target": f"{origin}/products/{product or Path(file).stem}"}
