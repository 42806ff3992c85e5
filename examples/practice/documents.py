"""Documents: scanned for what does harm, then sorted by the words in them."""

import asyncio
from pathlib import Path
from typing import Any

from dutiful import Context, Inject
from examples.practice.firms import Firm
from examples.practice.office import Office

# In two pieces, or scanners would take this very file for what it looks for.
HARMFUL = b"EICAR-STANDARD-" + b"ANTIVIRUS-TEST-FILE"
SORTS = {
    "invoice": ("invoice", "amount due"),
    "contract": ("agreement", "parties"),
    "tax": ("tax return", "assessment"),
}


async def document_scan(ctx: Context, document_id: int, office: Office = Inject("office")) -> dict[str, Any]:
    desk = office.desk(ctx)
    data = await asyncio.to_thread(_data, desk.firm, desk.get("document", id=document_id)["name"])
    state = "infected" if HARMFUL in data else "clean"
    desk.firm.run("document_scanned", id=document_id, state=state)
    if state == "clean":
        await desk.follow_up("document_classify", f"document_classify_{document_id}", document_id=document_id)
    return {"state": state}


async def document_classify(ctx: Context, document_id: int, office: Office = Inject("office")) -> dict[str, Any]:
    desk = office.desk(ctx)
    data = await asyncio.to_thread(_data, desk.firm, desk.get("document", id=document_id)["name"])
    text = data.decode(errors="replace").lower()
    found = {sort: sum(text.count(word) for word in words) for sort, words in SORTS.items()}
    best = max(found, key=lambda sort: found[sort])
    sort = best if found[best] else "other"
    desk.firm.run("document_classified", id=document_id, sort=sort)
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
