"""What two worker processes did to editions and projects, read from the log of their writes."""

import json
from collections import defaultdict
from pathlib import Path

SITE_FILES = ("__dashboard.html", "__404.html", "__switcher.json")


def interleavings(log: Path) -> list[str]:
    """Writes of one job to an edition or project between the first and the last one of another job's update of it.

    An update of an edition begins with its content and ends with its metadata; a render of a project begins with its
    dashboard and ends with the purge of its switcher.
    """
    found = []
    writing: dict[str, str] = {}  # what is being written, by which job
    for at, moment, job, _phase, operation, key in sorted(map(json.loads, log.read_text().splitlines())):
        what = _what(key)
        if what is None:
            continue
        if writing.get(what, job) != job:
            found.append(f"{job} {moment} {operation} {key} during the update by {writing[what]}, at {at}")
        if moment == "begin":
            writing[what] = job
        elif _last(operation, key):
            writing.pop(what, None)
    return found


def updates(log: Path) -> dict[str, int]:
    """How many jobs wrote to each edition and project, so that a test knows that there was a race."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for _, _, job, _, _, key in map(json.loads, log.read_text().splitlines()):
        if (what := _what(key)) is not None:
            jobs[what].add(job)
    return {what: len(by) for what, by in jobs.items()}


def _what(key: str) -> str | None:
    """The edition or project that a write belongs to."""
    parts = key.split("/")
    if "builds" in parts:
        return None
    if key.endswith(SITE_FILES):
        return f"project {parts[3] if parts[0] == 'orgs' else parts[1]}"
    if "__editions" in parts:
        return f"edition {parts[3] if parts[0] == 'orgs' else parts[1]} {parts[-1].removesuffix('.json')}"
    if "editions" in parts:  # a copy
        return f"edition {parts[3]} {parts[5]}"
    if parts[2:3] == ["v"]:  # a purge
        return f"edition {parts[1]} {parts[3]}"
    return f"edition {parts[1]} {parts[2].removesuffix('.json')}"  # a key


def _last(operation: str, key: str) -> bool:
    return operation == "purge" and (key.endswith("__switcher.json") or "/__editions/" in key)
