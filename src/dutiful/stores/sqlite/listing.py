"""What a page of jobs is found with."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, assert_never
from uuid import UUID

from dutiful.core.job import JobRecord
from dutiful.core.readable import read_object
from dutiful.reading import JobFilter, JobPage
from dutiful.stores.listing import Branch, Fetch, Index, Lines, Request, Sift, Walk, listing, needle
from dutiful.stores.sqlite import looking
from dutiful.stores.sqlite.codec import to_json, uuid
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL


def jobs(db: Connection, wanted: JobFilter) -> JobPage:
    page_of, answer = listing(wanted), None
    while True:
        try:
            request = page_of.send(answer)
        except StopIteration as found:
            page: JobPage = found.value
            return page
        answer = _answer(db, request)


def _answer(db: Connection, request: Request) -> Any:
    match request:
        case Lines(kinds, queue):
            return list(_lines(db, kinds, queue))
        case Walk(branches, low, high, each):
            return [_walk(db, branch, low, high, each) for branch in branches]
        case Sift(ids, wanted):
            return _sift(db, ids, wanted)
        case Fetch(ids):
            return _records(db, ids)
        case _:
            assert_never(request)


def _lines(db: Connection, kinds: Sequence[str] | None, queue: str | None) -> Iterator[tuple[str, str]]:
    """Stepped through from each to the one before it, so that it costs what there are, not what they hold."""
    for kind in _kinds(db) if kinds is None else kinds:
        if queue is not None:
            yield kind, queue
            continue
        found = db.value(SQL["last_queue"], (kind,))
        while found is not None:
            yield kind, found
            found = db.value(SQL["queue_before"], (kind, found))


def _kinds(db: Connection) -> Iterator[str]:
    kind = db.value(SQL["last_kind"])
    while kind is not None:
        yield kind
        kind = db.value(SQL["kind_before"], (kind,))


def _walk(db: Connection, branch: Branch, low: UUID, high: UUID, each: int) -> list[UUID]:
    bindings: dict[str, Any] = {"low": low.bytes, "high": high.bytes}
    match branch.index:
        case Index.OWN:
            bindings["own"] = UUID(branch.name).bytes
        case Index.LINE:
            bindings |= {"name": branch.name, "queue": branch.queue, "each": each}
        case Index.TENANT | Index.CORRELATION | Index.UNHAPPY:
            bindings |= {"name": branch.name, "each": each}
        case _:
            bindings["each"] = each
    return [uuid(row[0]) for row in db.rows(SQL[f"walk_{branch.index}"], bindings)]


def _sift(db: Connection, ids: Sequence[UUID], wanted: JobFilter) -> list[UUID]:
    """By one look-up each; subject and text are compared here, where letters beyond ASCII have their cases."""
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


def _records(db: Connection, ids: Sequence[UUID]) -> list[JobRecord]:
    found = (looking.find(db, job_id) for job_id in ids)
    return [job for job in found if job is not None]
