"""`python -m examples.sports_sites` plays a night shift, then checks the results; `--serve` opens the register."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dutiful import StoreUnavailable, UsageError
from examples.serving import ended_by_term
from examples.sports_sites.config import Config
from examples.sports_sites.serve import install, serve, world
from examples.sports_sites.story import run_story


def main() -> int:
    usage = "%(prog)s [--database-url URL] [--serve [--port PORT] | --world | --views]"
    parser = argparse.ArgumentParser(prog="python -m examples.sports_sites", usage=usage, description=__doc__)
    parser.add_argument(
        "--database-url",
        help="a Postgres database, in which schemas are made and dropped (default: a temporary SQLite file)",
    )
    parser.add_argument("--serve", action="store_true", help="serve the register, with a worker, until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="of the register (default: 8000)")
    parser.add_argument("--world", action="store_true", help="only serve the services that main:app talks to")
    parser.add_argument("--views", action="store_true", help="only create the SQL views in the database of main:app")
    chosen = parser.parse_args()
    url: str | None = chosen.database_url
    if url is not None and not url.startswith("postgres"):
        parser.error("--database-url must be postgresql://…; leave it out for a temporary SQLite file")
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story prints events itself
    try:
        if chosen.world:
            asyncio.run(ended_by_term(world(Console(), Config.read(os.environ))))
            return 0
        if chosen.views:
            asyncio.run(install(Console(), Config.read(os.environ), url))
            return 0
        with tempfile.TemporaryDirectory(prefix="sports-sites-") as folder:
            where = url or f"sqlite:///{folder}/jobs.db"
            if chosen.serve:
                asyncio.run(ended_by_term(serve(Console(), Path(folder), where, chosen.port)))
                return 0
            return 0 if asyncio.run(ended_by_term(run_story(Console(), Path(folder), where))) else 1
    except KeyboardInterrupt:
        return 0 if chosen.world or chosen.serve else 130  # an interrupted story has proven nothing
    except (UsageError, StoreUnavailable) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
