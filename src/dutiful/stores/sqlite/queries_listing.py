"""Finds a page of jobs: answers the lookups of stores.listing from indexes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, assert_never
from uuid import UUID

from dutiful.core.job import JobRecord
from dutiful.core.json import read_object
from dutiful.store.queries import JobFilter, JobPage
from dutiful.stores.listing import Branch, Fetch, FilterIds, Index, KindQueues, Lookup, Walk, listing, needle
from dutiful.stores.sqlite.engine import SQL, Connection
from dutiful.stores.sqlite.engine.codec import to_json, uuid
from dutiful.stores.sqlite.engine.driver import stored

Records = Callable[[Connection, Sequence[UUID], bool], list[JobRecord]]


def page(db: Connection, wanted: JobFilter, records: Records) -> JobPage:
    page_of, answer = listing(wanted), None
    while True:
        try:
            lookup = page_of.send(answer)
        except StopIteration as found:
            return found.value  # type: ignore[no-any-return]
        answer = _answer(db, lookup, records)


def _answer(db: Connection, lookup: Lookup, records: Records) -> Any:
    match lookup:
        case KindQueues(kinds, queue):
            return list(_kind_queue_pairs(db, kinds, queue))
        case Walk(branches, low, high, each):
            return [_walk(db, branch, low, high, each) for branch in branches]
        case FilterIds(ids, wanted):
            return _filter_ids(db, ids, wanted)
        case Fetch(ids, details):
            return records(db, ids, details)
        case _:
            assert_never(lookup)


def _kind_queue_pairs(db: Connection, kinds: Sequence[str] | None, queue: str | None) -> Iterator[tuple[str, str]]:
    for kind in _from_last(db, "kind_before") if kinds is None else kinds:
        for found in _from_last(db, "queue_before", kind) if queue is None else [queue]:
            yield kind, found


def _from_last(db: Connection, statement: str, *within: str) -> Iterator[str]:
    """Steps from each pair to the one before it, so that the number of their jobs does not matter."""
    before: str | bytes | None = None
    while (found := db.row(SQL[statement], (*within, before))) is not None:
        yield found[0]
        before = stored(found)[0]


def _walk(db: Connection, branch: Branch, low: UUID, high: UUID, each: int) -> list[UUID]:
    bindings = {"low": low.bytes, "high": high.bytes, "each": each, "name": branch.name, "queue": branch.queue}
    if branch.index is Index.CORRELATION_ROOT:
        bindings["root"] = UUID(branch.name).bytes
    return [uuid(row[0]) for row in db.rows(SQL[f"walk_{branch.index}"], bindings)]


def _filter_ids(db: Connection, ids: Sequence[UUID], wanted: JobFilter) -> list[UUID]:
    """Filters by one lookup per id; subject and text are compared in Python, which folds case beyond ASCII."""
    bindings = {
        "kinds": None if wanted.kinds is None else to_json(wanted.kinds),
        "queue": wanted.queue,
        "tenant": wanted.tenant,
        "state": None if wanted.state is None else wanted.state.value,
        "error_class": wanted.error_class,
        "phase": wanted.phase,
        "subjects": wanted.subject is not None or wanted.text is not None,
        "texts": wanted.text is not None,
    }
    has_subject, has_text = _subject_test(wanted.subject), _text_test(wanted.text)
    found: list[UUID] = []
    for job_id in ids:
        row = db.row(SQL["matching_job"], {**bindings, "id": job_id.bytes})
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
    # True equals 1 in Python, but not in JSON.
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _text_test(text: str | None) -> Callable[[Sequence[str | None]], bool]:
    if text is None:
        return lambda columns: True
    wanted = needle(text).casefold()
    return lambda columns: any(column is not None and wanted in column.casefold() for column in columns)
