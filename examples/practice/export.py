"""A firm leaves: its data is exported, and only then deleted."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from dutiful import Context, Fail, Inject
from examples.practice.archive import written_once
from examples.practice.firms import Firm, Row
from examples.practice.platform import FirmScope, Platform


class NotExported(Fail):
    """Nothing is deleted without a complete export."""


def firm_export(ctx: Context, export_id: int, platform: Platform = Inject("platform")) -> dict[str, Any]:
    """Exports a firm's rows and files into one archive; only once, because the firm may be deleted by now."""
    scope = platform.scope(ctx)
    target = _archive(platform.firms.folder, scope, export_id)
    if scope.get("export", id=export_id)["sha256"] is None:
        if not target.exists():
            with written_once(target) as half:
                _pack(scope.firm, half)
        scope.firm.run("export_made", id=export_id, file=target.name, sha256=_digest(target))
    _check(target, scope, export_id)
    return {"bytes": target.stat().st_size}


def firm_purge(ctx: Context, export_id: int, platform: Platform = Inject("platform")) -> None:
    """Deletes everything that a firm owns, if its export exists, is intact and has every row."""
    scope = platform.scope(ctx)
    target = _archive(platform.firms.folder, scope, export_id)
    _check(target, scope, export_id)
    if _lacks(target, scope.firm.dump()):
        raise NotExported(f"firm {scope.firm.id} has changed since export {export_id}: make another export")
    scope.firm.purge()
    shutil.rmtree(scope.firm.folder, ignore_errors=True)


def _archive(folder: Path, scope: FirmScope, export_id: int) -> Path:
    return folder / "exports" / f"firm-{scope.firm.id}-{export_id}.zip"


def _pack(firm: Firm, file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for table, rows in firm.dump().items():
            archive.writestr(f"{table}.json", json.dumps(rows, indent=1))
        for path in sorted(path for path in firm.folder.rglob("*") if path.is_file()):
            archive.write(path, Path("files") / path.relative_to(firm.folder))


def _check(file: Path, scope: FirmScope, export_id: int) -> None:
    if not file.exists() or _digest(file) != scope.get("export", id=export_id)["sha256"]:
        raise NotExported(f"export {export_id} of firm {scope.firm.id} is missing or damaged")


def _lacks(file: Path, rows: dict[str, list[Row]]) -> bool:
    with zipfile.ZipFile(file) as archive:
        packed = {table: json.loads(archive.read(f"{table}.json")) for table in rows}
    return any(row not in packed[table] for table, found in rows.items() for row in found)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
