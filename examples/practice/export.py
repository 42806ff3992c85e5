"""A firm leaves: it takes its data along, and only then is it forgotten."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from dutiful import Context, Fail, Inject
from examples.practice.archive import written_once
from examples.practice.firms import Firm, Row
from examples.practice.office import Desk, Office


class NotExported(Fail):
    """Nothing is deleted before the firm has its data in hand."""


def firm_export(ctx: Context, export_id: int, office: Office = Inject("office")) -> dict[str, Any]:
    """Everything that a firm owns, rows and files, in one archive; it is made once, for the firm may be gone by now."""
    desk = office.desk(ctx)
    target = _archive(office.firms.folder, desk, export_id)
    if desk.get("export", id=export_id)["sha256"] is None:
        if not target.exists():
            with written_once(target) as half:
                _pack(desk.firm, half)
        desk.firm.run("export_made", id=export_id, file=target.name, sha256=_digest(target))
    _check(target, desk, export_id)
    return {"bytes": target.stat().st_size}


def firm_purge(ctx: Context, export_id: int, office: Office = Inject("office")) -> None:
    """Delete everything that a firm owns, if its export is there, whole, and has every row."""
    desk = office.desk(ctx)
    target = _archive(office.firms.folder, desk, export_id)
    _check(target, desk, export_id)
    if _lacks(target, desk.firm.dump()):
        raise NotExported(f"firm {desk.firm.id} has changed since export {export_id} was made: make another export")
    desk.firm.purge()
    shutil.rmtree(desk.firm.folder, ignore_errors=True)


def _archive(folder: Path, desk: Desk, export_id: int) -> Path:
    return folder / "exports" / f"firm-{desk.firm.id}-{export_id}.zip"


def _pack(firm: Firm, file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for table, rows in firm.dump().items():
            archive.writestr(f"{table}.json", json.dumps(rows, indent=1))
        for path in sorted(path for path in firm.folder.rglob("*") if path.is_file()):
            archive.write(path, Path("files") / path.relative_to(firm.folder))


def _check(file: Path, desk: Desk, export_id: int) -> None:
    if not file.exists() or _digest(file) != desk.get("export", id=export_id)["sha256"]:
        raise NotExported(f"export {export_id} of firm {desk.firm.id} is not there, or not as it was made")


def _lacks(file: Path, rows: dict[str, list[Row]]) -> bool:
    with zipfile.ZipFile(file) as archive:
        packed = {table: json.loads(archive.read(f"{table}.json")) for table in rows}
    return any(row not in packed[table] for table, found in rows.items() for row in found)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
