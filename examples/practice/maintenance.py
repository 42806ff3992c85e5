"""Housekeeping: what is over is put away."""

import gzip
import json
from datetime import date, datetime
from typing import Any

from dutiful import Context, Inject
from examples.practice.archive import written_once
from examples.practice.office import Office


async def session_expire(
    ctx: Context, run_id: int, before: datetime, office: Office = Inject("office")
) -> dict[str, Any]:
    firm = office.desk(ctx).firm
    firm.run("expire_sessions", before=before.isoformat())
    return {"left": len(firm.all("sessions"))}


def data_archival(ctx: Context, run_id: int, before: date, office: Office = Inject("office")) -> dict[str, Any]:
    """Move closed work into a file of this job; what its first attempt has written is what is removed, by every one."""
    firm = office.desk(ctx).firm
    file = firm.folder / "archive" / f"works-{run_id}-{ctx.job_id}.jsonl.gz"
    if not file.exists():
        works = firm.all("closed_works", before=before.isoformat())
        if not works:
            return {"archived": 0}
        with written_once(file) as half, gzip.open(half, "wt") as lines:
            lines.writelines(json.dumps(work) + "\n" for work in works)
    with gzip.open(file, "rt") as lines:
        ids = [json.loads(line)["id"] for line in lines]
    firm.run("remove_closed_works", before=before.isoformat(), ids=json.dumps(ids))
    return {"archived": len(ids)}
