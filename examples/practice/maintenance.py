"""Maintenance: expired sessions and closed work."""

import gzip
import json
from datetime import date, datetime
from typing import Any

from dutiful import Context, Inject
from examples.practice.archive import written_once
from examples.practice.platform import Platform


async def session_expire(
    ctx: Context, run_id: int, before: datetime, platform: Platform = Inject("platform")
) -> dict[str, Any]:
    firm = platform.scope(ctx).firm
    firm.run("expire_sessions", before=before.isoformat())
    return {"left": len(firm.all("sessions"))}


def data_archival(ctx: Context, run_id: int, before: date, platform: Platform = Inject("platform")) -> dict[str, Any]:
    """Moves closed work into a file of this job; every attempt removes what the first one has written."""
    firm = platform.scope(ctx).firm
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
