"""How far a job has come, for people."""

from collections.abc import Sequence
from typing import Any

from dutiful.cli.output import ago, error_text, plain, print_table, show, when
from dutiful.core.duration import brief
from dutiful.core.job import PhaseRecord, Progress

BAR = 30
GROUPS = ("in_progress", "completed", "skipped", "failed")
SHOWN = 5  # failed items, unless all are asked for


def print_progress(progress: Progress, *, full: bool) -> None:
    show(f"\nProgress ({ago(progress.updated_at)})", *_lines(progress, full))


def print_phases(phases: Sequence[PhaseRecord]) -> None:
    if phases:
        rows = [(p.name, p.state.value, p.attempt, when(p.started_at), _took(p), error_text(p.error)) for p in phases]
        names = ("phase", "state", "tries#", "started", "took#", "error")
        print_table(names, rows, empty="", title="\nPhases", whole=True)


def _lines(progress: Progress, full: bool) -> list[str]:
    lines: list[str] = []
    if progress.overall is not None:
        done = round(BAR * progress.overall / 100)
        lines.append(f"[{'#' * done}{'.' * (BAR - done)}] {progress.overall} %")
    if progress.phase is not None:
        percent = "" if progress.percent is None else f": {progress.percent:.0f} %"
        lines.append(f"phase {plain(progress.phase)}{percent}")
    if progress.message:
        lines.append(plain(progress.message))
    if progress.items is not None:
        lines += _items(progress.items, full)
    return lines


def _items(items: dict[str, Any], full: bool) -> list[str]:
    counts = ", ".join(f"{len(items.get(name, ())):,} {name.replace('_', ' ')}" for name in GROUPS)
    failed = items.get("failed", [])
    lines = [f"{items.get('total', 0):,} items: {counts}"]
    lines += [f"  failed: {plain(str(f['item']))}: {plain(f['error'])}" for f in (failed if full else failed[:SHOWN])]
    if len(failed) > SHOWN and not full:
        lines.append(f"  and {len(failed) - SHOWN:,} more: --full")
    return lines


def _took(phase: PhaseRecord) -> str | None:
    if phase.started_at is None or phase.ended_at is None:
        return None
    return brief(phase.ended_at - phase.started_at)
