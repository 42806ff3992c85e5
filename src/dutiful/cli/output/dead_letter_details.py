"""Tables and details of dead letters."""

from collections.abc import Sequence
from typing import Any

from dutiful.cli.output.job_details import print_value
from dutiful.cli.output.printing import ago, plain, print_facts, print_table, record_json, show, when
from dutiful.core import ids
from dutiful.operator import Preview
from dutiful.store.dead_letters import DETAILS, DeadLetter, DeadLetterCounts, DeadLetterGroup


def letter_json(letter: DeadLetter, *, details: bool = True) -> dict[str, Any]:
    fields = record_json(letter, "id", "new_job_id")
    left_out = ("job",) if details else DETAILS  # the job repeats other fields
    return {name: value for name, value in fields.items() if name not in left_out}


def group_json(group: DeadLetterGroup) -> dict[str, Any]:
    return record_json(group, "newest_id")


def print_letters(letters: Sequence[DeadLetter], title: str | None = None) -> None:
    print_table(
        ("id", "kind", "tenant", "status", "tries#", "failed", "class", "error"),
        (
            (
                ids.public(letter.id),
                letter.kind,
                letter.tenant,
                letter.status.value,
                f"{letter.attempt}/{letter.max_attempts}",
                ago(letter.died_at),
                letter.error_class,
                _error(letter.error_type, letter.message),
            )
            for letter in letters
        ),
        empty="no dead letters",
        title=title,
    )


def print_groups(groups: Sequence[DeadLetterGroup], title: str | None = None) -> None:
    print_table(
        ("letters#", "kind", "class", "error", "first", "last", "fingerprint"),
        (
            (
                group.count,
                group.kind,
                group.error_class,
                _error(group.error_type, group.message),
                ago(group.first_at),
                ago(group.last_at),
                group.fingerprint,
            )
            for group in groups
        ),
        empty="no dead letters",
        title=title,
    )


def print_letter(letter: DeadLetter, *, full: bool) -> None:
    from rich.text import Text

    show(Text.assemble("Dead letter ", (ids.public(letter.id), "bold"), "  ", letter.status.value))
    show(f"It failed with {plain(_error(letter.error_type, letter.message) or 'an unknown error')}.", "")
    print_facts(
        {
            "uuid": str(letter.id),
            "kind": letter.kind,
            "queue": letter.queue,
            "tenant": letter.tenant,
            "unique key": letter.unique_key,
            "correlation id": letter.correlation_id,
            "attempts": f"{letter.attempt} of {letter.max_attempts}",
            "error class": letter.error_class,
            "fingerprint": letter.fingerprint,
            "made": when(letter.created_at),
            "failed": when(letter.died_at),
            "reviewed": when(letter.reviewed_at),
            "by": letter.reviewed_by,
            "notes": letter.notes,
            "new job": None if letter.new_job_id is None else ids.public(letter.new_job_id),
            "resolution": letter.resolution,
        }
    )
    print_value("Payload", letter.payload, full)
    if letter.history:
        rows = [(n, one.get("outcome"), _of(one.get("error"))) for n, one in enumerate(letter.history, 1)]
        print_table(("attempt#", "outcome", "error"), rows, empty="", title="\nEarlier attempts", whole=True)
    traces = [str(error["traceback"]) for error in letter.errors if error.get("traceback")]
    if traces and not full:
        show("\nTracebacks: --full")
    for trace in traces if full else []:
        show("\nTraceback", plain(trace).rstrip())


def print_counts(counts: DeadLetterCounts) -> None:
    rows: list[tuple[str, str, int]] = []
    for what, by in (("status", counts.by_status), ("kind", counts.by_kind), ("class", counts.by_class)):
        rows += [(what, name or "none", count) for name, count in sorted(by.items(), key=lambda item: -item[1])]
    print_table(("by", "which", "letters#"), rows, empty="no dead letters")
    show(f"{counts.total:,} in all")
    if counts.oldest_open_at is not None:
        show(f"the oldest that waits for a decision failed {ago(counts.oldest_open_at)}")


def print_preview(preview: Preview) -> None:
    show(f"{preview.count:,} dead letters can be changed by {preview.act}.")
    if preview.count:
        print_groups(preview.groups, title="\nBy error")
        print_letters(preview.sample, title="\nThe newest")


def _error(kind: str | None, message: str | None) -> str | None:
    return None if kind is None and message is None else f"{kind or 'error'}: {message or ''}"


def _of(error: dict[str, Any] | None) -> str | None:
    return None if error is None else _error(error.get("type"), error.get("message"))
