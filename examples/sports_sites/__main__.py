"""`python -m examples.sports_sites` tells the story of a night, then checks that it adds up."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from examples.sports_sites.story import tell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.sports_sites", description=__doc__)
    parser.add_argument("--database-url", help="an empty database for the jobs, as on Postgres; else a file of its own")
    database_url: str | None = parser.parse_args().database_url
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story tells of it
    with tempfile.TemporaryDirectory(prefix="sports-sites-") as folder:
        return 0 if asyncio.run(tell(Console(), Path(folder), database_url)) else 1


sys.exit(main())
