"""What a worker logs in an outage of its database, as tests look at it."""

import re

from faults import Process

AWAY_LINE, BACK_LINE = "the database is away, and what needs it waits", "the database is back"


def warnings(process: Process) -> list[str]:
    """What it has logged above INFO, without times and the error that follows a colon."""
    marked = re.findall(r"(?:WARNING|ERROR) \S+ ([^:\n]+)", process.output)
    assert "Traceback" not in process.output
    return [re.sub(r" after .*", "", text) for text in marked]


async def logged(process: Process, text: str) -> bool:
    return text in process.output
