"""Documents: scanned for malware, then classified by their text."""

import asyncio
from pathlib import Path
from typing import Any

from dutiful import Context, Inject
from examples.practice.firms import Firm
from examples.practice.platform import Platform

# In two pieces, because scanners would take this file for malware.
HARMFUL = b"EICAR-STANDARD-" + b"ANTIVIRUS-TEST-FILE"
SORTS = {
    "invoice": ("invoice", "amount due"),
    "contract": ("agreement", "parties"),
    "tax": ("tax return", "assessment"),
}


async def document_scan(ctx: Context, document_id: int, platform: Platform = Inject("platform")) -> dict[str, Any]:
    scope = platform.scope(ctx)
    data = await asyncio.to_thread(_data, scope.firm, scope.get("document", id=document_id)["name"])
    state = "infected" if HARMFUL in data else "clean"
    scope.firm.run("document_scanned", id=document_id, state=state)
    if state == "clean":
        await scope.follow_up("document_classify", f"document_classify_{document_id}", document_id=document_id)
    return {"state": state}


async def document_classify(ctx: Context, document_id: int, platform: Platform = Inject("platform")) -> dict[str, Any]:
    scope = platform.scope(ctx)
    data = await asyncio.to_thread(_data, scope.firm, scope.get("document", id=document_id)["name"])
    text = data.decode(errors="replace").lower()
    found = {sort: sum(text.count(phrase) for phrase in phrases) for sort, phrases in SORTS.items()}
    best = max(found, key=lambda sort: found[sort])
    sort = best if found[best] else "other"
    scope.firm.run("document_classified", id=document_id, sort=sort)
    return {"sort": sort}


def store_document(firm: Firm, name: str, data: bytes) -> int:
    """The new document's id."""
    _folder(firm).mkdir(exist_ok=True)
    (_folder(firm) / name).write_bytes(data)
    return firm.add("add_document", name=name)


def _folder(firm: Firm) -> Path:
    return firm.folder / "documents"


def _data(firm: Firm, name: str) -> bytes:
    return (_folder(firm) / name).read_bytes()
