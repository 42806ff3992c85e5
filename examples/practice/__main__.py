"""`python -m examples.practice` tells the story of a day in two firms, then checks that it adds up."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dutiful import UsageError
from examples.practice.story import tell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.practice", description=__doc__)
    parser.add_argument(
        "--database-url",
        default=os.environ.get("DUTIFUL_DATABASE_URL"),
        help="a Postgres database for the jobs, in a schema that is dropped in the end (a temporary SQLite file)",
    )
    chosen = parser.parse_args()
    if chosen.database_url and not chosen.database_url.startswith("postgres"):
        parser.error("--database-url must be postgresql://…; leave it out for a temporary SQLite file")
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story tells of it
    with tempfile.TemporaryDirectory(prefix="practice-") as folder:
        url = chosen.database_url or f"sqlite:///{Path(folder).absolute()}/jobs.db"
        try:
            return 0 if asyncio.run(tell(Console(), Path(folder), url)) else 1
        except UsageError as error:
            parser.error(str(error))


sys.exit(main())
