"""Housekeeping: what is over is put away."""

import gzip
import json
from datetime import date, datetime
from typing import Any

from dutiful import Context, Inject
from examples.practice.office import Office


async def session_expire(
    ctx: Context, run_id: int, before: datetime, office: Office = Inject("office")
) -> dict[str, Any]:
    firm = office.desk(ctx).firm
    firm.run("expire_sessions", before=before.isoformat())
    return {"left": len(firm.all("sessions"))}


def data_archival(ctx: Context, run_id: int, before: date, office: Office = Inject("office")) -> dict[str, Any]:
    """Move closed work into a file; it is written before anything is deleted, and again if the job is."""
    firm = office.desk(ctx).firm
    works = firm.all("closed_works", before=before.isoformat())
    file = firm.folder / "archive" / f"works-{run_id}.jsonl.gz"
    if works:
        file.parent.mkdir(exist_ok=True)
        with gzip.open(file, "wt") as lines:
            lines.writelines(json.dumps(work) + "\n" for work in works)
        firm.run("remove_closed_works", before=before.isoformat())
    return {"archived": len(works)}
