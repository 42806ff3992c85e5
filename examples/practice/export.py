"""A firm leaves: it takes its data along, and only then is it forgotten."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from dutiful import Context, Fail, Inject
from examples.practice.office import Desk, Office


class NotExported(Fail):
    """Nothing is deleted before the firm has its data in hand."""


def firm_export(ctx: Context, export_id: int, office: Office = Inject("office")) -> dict[str, Any]:
    """Everything that a firm owns, rows and files, in one archive."""
    desk = office.desk(ctx)
    desk.get("export", id=export_id)
    rows = desk.firm.dump()
    target = _archive(office.firms.folder, desk, export_id)
    target.parent.mkdir(exist_ok=True)
    half = target.with_suffix(f".{ctx.job_id}.part")
    with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED) as archive:
        for table, found in rows.items():
            archive.writestr(f"{table}.json", json.dumps(found, indent=1))
        for file in sorted(path for path in desk.firm.folder.rglob("*") if path.is_file()):
            archive.write(file, Path("files") / file.relative_to(desk.firm.folder))
    half.replace(target)  # whole, or not there
    desk.firm.run("export_made", id=export_id, file=target.name, sha256=_digest(target))
    return {"rows": sum(map(len, rows.values()))}


def firm_purge(ctx: Context, export_id: int, office: Office = Inject("office")) -> None:
    """Delete everything that a firm owns, if its export is there and whole."""
    desk = office.desk(ctx)
    target = _archive(office.firms.folder, desk, export_id)
    if not target.exists() or _digest(target) != desk.get("export", id=export_id)["sha256"]:
        raise NotExported(f"export {export_id} of firm {desk.firm.id} is not there, or not as it was made")
    desk.firm.purge()
    shutil.rmtree(desk.firm.folder, ignore_errors=True)


def _archive(folder: Path, desk: Desk, export_id: int) -> Path:
    return folder / "exports" / f"firm-{desk.firm.id}-{export_id}.zip"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
