"""`init`: writes the first files of a project."""

from pathlib import Path
from typing import Annotated

import typer

from dutiful.core.errors import DutifulError

JOBS = '''\
"""Background jobs: what `dutiful worker` runs."""

import time
from datetime import UTC, datetime

from dutiful import Dutiful, Retry

app = Dutiful()  # where jobs are kept is set in dutiful.toml, or by DUTIFUL_DATABASE_URL


# The types are the payload's schema: a job that does not fit them is refused when it is enqueued.
# From your code:  await greet.enqueue(name="Ada")   or, where nothing is async:  greet.sync.enqueue(name="Ada")
@app.job(retry=Retry(max_attempts=3), timeout="1m")
async def greet(name: str, excited: bool = False) -> str:
    """An async job runs on the worker's event loop."""
    return f"Hello, {name}{'!' if excited else '.'}"


@app.job(queue="fast")
def count_down(start: int = 3) -> str:
    """A plain function runs in a thread, so it may block."""
    for _ in range(start):
        time.sleep(1)
    return "Lift-off"


@app.job
async def tick() -> str:
    """A job for the schedule below."""
    return datetime.now(UTC).isoformat()


# Cron works too: app.schedule(tick, "0 3 * * *", timezone="Europe/Helsinki")
app.schedule(tick, every="1m")
'''

SETTINGS = """\
# Settings of Dutiful. The environment wins over this file: DUTIFUL_DATABASE_URL=… and so on.

# The app that the `dutiful` command works with.
app = "jobs:app"

# One file to begin with. For a fleet: postgresql://user@host/database, and `dutiful migrate` once.
database_url = "sqlite:///dutiful.db"

# A worker's lanes: how many jobs run at once, and from which queues ("*" is any).
[lanes.fast]
slots = 3
queues = ["fast"]

[lanes.general]
slots = 5
queues = ["*"]
"""

NEXT = """\
Next:
  dutiful worker                            run jobs, in a terminal of its own
  dutiful enqueue greet name=Ada --wait     enqueue one and see its result
  dutiful jobs list                         see what happened
  dutiful doctor                            check the database and the workers"""


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Set up")(init)


def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="The folder; created if missing.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a small starter: jobs.py with an app, and dutiful.toml.

    \b
    Examples:
      dutiful init
      dutiful init myproject
    """
    files = {directory / "jobs.py": JOBS, directory / "dutiful.toml": SETTINGS}
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise DutifulError(f"nothing was written: {' and '.join(there)} exist already; --force overwrites")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
            typer.echo(f"wrote {path}")
    except OSError as error:
        raise DutifulError(f"{error.filename} cannot be written: {error.strerror}") from error
    if directory != Path():
        typer.echo(f"\ncd {directory}")
    typer.echo(f"\n{NEXT}")
