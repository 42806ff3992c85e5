"""`python -m examples.practice` plays a day in two firms, then checks the results; `--serve` opens their site."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dutiful import UsageError
from examples.practice.platform import Addresses
from examples.practice.serve import serve, world
from examples.practice.story import run_story
from examples.serving import ended_by_term


def main() -> int:
    usage = "%(prog)s [--database-url URL] [--serve [--port PORT] | --world]"
    parser = argparse.ArgumentParser(prog="python -m examples.practice", usage=usage, description=__doc__)
    parser.add_argument(
        "--database-url",
        default=os.environ.get("DUTIFUL_DATABASE_URL"),
        help="a Postgres database, in which a schema is made and dropped (default: a temporary SQLite file)",
    )
    parser.add_argument("--serve", action="store_true", help="serve the platform's site, with a worker, until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="of the site (default: 8000)")
    parser.add_argument(
        "--world", action="store_true", help="only serve the mail servers and calendars that main:app talks to"
    )
    chosen = parser.parse_args()
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story prints events itself
    try:
        if chosen.world:
            asyncio.run(ended_by_term(world(Console(), Addresses.read(os.environ))))
            return 0
        if chosen.database_url and not chosen.database_url.startswith("postgres"):
            parser.error("--database-url must be postgresql://…; leave it out for a temporary SQLite file")
        with tempfile.TemporaryDirectory(prefix="practice-") as folder:
            url = chosen.database_url or f"sqlite:///{Path(folder).absolute()}/jobs.db"
            if chosen.serve:
                asyncio.run(ended_by_term(serve(Console(), Path(folder), url, chosen.port)))
                return 0
            return 0 if asyncio.run(ended_by_term(run_story(Console(), Path(folder), url))) else 1
    except KeyboardInterrupt:
        return 0 if chosen.world or chosen.serve else 130  # an interrupted story has proven nothing
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
