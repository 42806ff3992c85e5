"""`python -m examples.practice` plays a day in two firms, then checks the results."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dutiful import UsageError
from examples.practice.story import run_story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.practice", description=__doc__)
    parser.add_argument(
        "--database-url",
        default=os.environ.get("DUTIFUL_DATABASE_URL"),
        help="a Postgres database, in which a schema is made and dropped (default: a temporary SQLite file)",
    )
    chosen = parser.parse_args()
    if chosen.database_url and not chosen.database_url.startswith("postgres"):
        parser.error("--database-url must be postgresql://…; leave it out for a temporary SQLite file")
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story prints events itself
    with tempfile.TemporaryDirectory(prefix="practice-") as folder:
        url = chosen.database_url or f"sqlite:///{Path(folder).absolute()}/jobs.db"
        try:
            return 0 if asyncio.run(run_story(Console(), Path(folder), url)) else 1
        except UsageError as error:
            parser.error(str(error))


sys.exit(main())
