"""Finds a page of jobs: answers the requests of stores.listing from indexes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, assert_never
from uuid import UUID

from dutiful.core.job import JobRecord
from dutiful.core.json import read_object
from dutiful.store.queries import JobFilter, JobPage
from dutiful.stores.listing import Branch, Fetch, Index, KindQueues, Request, Sift, Walk, listing, needle
from dutiful.stores.sqlite.engine import SQL, Connection
from dutiful.stores.sqlite.engine.codec import to_json, uuid

Records = Callable[[Connection, Sequence[UUID]], list[JobRecord]]


def page(db: Connection, wanted: JobFilter, records: Records) -> JobPage:
    page_of, answer = listing(wanted), None
    while True:
        try:
            request = page_of.send(answer)
        except StopIteration as found:
            return found.value  # type: ignore[no-any-return]
        answer = _answer(db, request, records)


def _answer(db: Connection, request: Request, records: Records) -> Any:
    match request:
        case KindQueues(kinds, queue):
            return list(_lines(db, kinds, queue))
        case Walk(branches, low, high, each):
            return [_walk(db, branch, low, high, each) for branch in branches]
        case Sift(ids, wanted):
            return _sift(db, ids, wanted)
        case Fetch(ids):
            return records(db, ids)
        case _:
            assert_never(request)


def _lines(db: Connection, kinds: Sequence[str] | None, queue: str | None) -> Iterator[tuple[str, str]]:
    for kind in _back(db, "kind_before") if kinds is None else kinds:
        for found in _back(db, "queue_before", kind) if queue is None else [queue]:
            yield kind, found


def _back(db: Connection, statement: str, *within: str) -> Iterator[str]:
    """Steps from each to the one before it, so that the number of their jobs does not matter."""
    found: str | bytes | None = b""  # a blob comes after all texts
    while (found := db.value(SQL[statement], (*within, found))) is not None:
        yield found


def _walk(db: Connection, branch: Branch, low: UUID, high: UUID, each: int) -> list[UUID]:
    bindings = {"low": low.bytes, "high": high.bytes, "each": each, "name": branch.name, "queue": branch.queue}
    if branch.index is Index.OWN:
        bindings["own"] = UUID(branch.name).bytes
    return [uuid(row[0]) for row in db.rows(SQL[f"walk_{branch.index}"], bindings)]


def _sift(db: Connection, ids: Sequence[UUID], wanted: JobFilter) -> list[UUID]:
    """By one lookup each; subject and text are compared in Python, which knows the case of letters beyond ASCII."""
    bindings = {
        "kinds": None if wanted.kinds is None else to_json(wanted.kinds),
        "queue": wanted.queue,
        "tenant": wanted.tenant,
        "state": None if wanted.state is None else wanted.state.value,
        "error_class": wanted.error_class,
        "texts": wanted.text is not None,
    }
    has_subject, has_text = _subject_test(wanted.subject), _text_test(wanted.text)
    found: list[UUID] = []
    for job_id in ids:
        row = db.row(SQL["sift"], {**bindings, "id": job_id.bytes})
        if row is not None and has_subject(row[0]) and has_text(row):
            found.append(job_id)
    return found


def _subject_test(fields: dict[str, Any] | None) -> Callable[[str | None], bool]:
    if fields is None:
        return lambda subject: True

    def test(text: str | None) -> bool:
        subject = read_object(text) or {}
        return all(name in subject and _same(subject[name], value) for name, value in fields.items())

    return test


def _same(left: Any, right: Any) -> bool:
    # In Python True is 1, in JSON it is not.
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _text_test(text: str | None) -> Callable[[Sequence[str | None]], bool]:
    if text is None:
        return lambda columns: True
    wanted = needle(text).casefold()
    return lambda columns: any(column is not None and wanted in column.casefold() for column in columns)
