"""The media service: a JobQueue with the three phases."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.media_pipeline.config import Config
from examples.media_pipeline.phases import PHASES, Workspace
from examples.media_pipeline.queue import JobQueue


def media_queue(folder: Path, **changes: Any) -> JobQueue:
    """Stores everything in `folder`, unless DUTIFUL_DATABASE_URL names another database."""
    workspace = Workspace(folder / "files")
    config = Config(
        phases=PHASES,
        resources=workspace.resources,
        database_url=os.environ.get("DUTIFUL_DATABASE_URL") or f"sqlite:///{folder.absolute()}/media.db",
        # A separate schema, because retention deletes all jobs in it.
        schema=os.environ.get("DUTIFUL_SCHEMA", "media_pipeline"),
        webhook_networks=("127.0.0.0/8",),
        on_delete=workspace.clear,
    )
    return JobQueue(replace(config, **changes))


def order(origin: str, file: str, product: str | None = None) -> dict[str, str]:
    """The data of a job: the file to download, and where to upload the product."""
    return {"source": f"{origin}/files/{file}", "target": f"{origin}/products/{product or Path(file).stem}"}
