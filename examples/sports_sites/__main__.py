"""`python -m examples.sports_sites` plays a night shift, then checks the results."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dutiful import UsageError
from examples.sports_sites.story import run_story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.sports_sites", description=__doc__)
    parser.add_argument(
        "--database-url",
        help="a Postgres database, in which schemas are made and dropped (default: a temporary SQLite file)",
    )
    url: str | None = parser.parse_args().database_url
    if url is not None and not url.startswith("postgres"):
        parser.error("--database-url must be postgresql://…; leave it out for a temporary SQLite file")
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story prints events itself
    with tempfile.TemporaryDirectory(prefix="sports-sites-") as folder:
        try:
            return 0 if asyncio.run(run_story(Console(), Path(folder), url or f"sqlite:///{folder}/jobs.db")) else 1
        except UsageError as error:
            parser.error(str(error))


sys.exit(main())
