"""`python -m examples.accounts` sends messages and deletes accounts, then checks the results."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from dutiful import UsageError
from examples.accounts.story import run_story
from examples.servers import own_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.accounts", description=__doc__)
    parser.add_argument(
        "--database-url",
        default=os.environ.get("DUTIFUL_DATABASE_URL"),
        help="a Postgres server, as superuser; a database on it is made and dropped (default: a server of its own)",
    )
    url: str | None = parser.parse_args().database_url
    if url and not url.startswith("postgres"):
        parser.error("--database-url must be postgresql://…; leave it out for a server of its own")
    log = logging.getLogger("dutiful")
    with ExitStack() as stack:
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # the story prints tasks itself
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="accounts-"))
        try:
            results = asyncio.run(run_story(Console(), Path(folder), url or stack.enter_context(own_server())))
        except UsageError as error:
            parser.error(str(error))
    return 0 if all(all(checklist.values()) for checklist in results.values()) else 1


sys.exit(main())
