"""`python -m examples.sports_sites.importing` imports the old queues into the register's own.

Exit code 1 if rows are left, 2 if there is nothing to import from.
"""

import asyncio
import os
import sys

from dutiful import DutifulError
from examples.sports_sites.config import Config
from examples.sports_sites.importing.importer import import_queues
from examples.sports_sites.service import sports_app


async def main() -> int:
    # Not the app of `main`, which adds sample sites.
    runs = await import_queues(sports_app(Config.read(os.environ)))
    for run in runs:
        print(run)
        for row_id, problem in run.bad.items():
            print(f"  row {row_id} was left: {problem}", file=sys.stderr)
    return 1 if any(run.bad for run in runs) else 0


try:
    sys.exit(asyncio.run(main()))
except DutifulError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
