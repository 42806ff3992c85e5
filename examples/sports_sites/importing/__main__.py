"""`python -m examples.sports_sites.importing` imports the old queues into the register's own; 1 if rows are left."""

import asyncio
import sys

from examples.sports_sites.importing.importer import import_queues
from examples.sports_sites.main import app


async def main() -> int:
    async with app:
        runs = await import_queues(app)
    for run in runs:
        print(run)
        for row_id, problem in run.bad.items():
            print(f"  row {row_id} was left: {problem}", file=sys.stderr)
    return 1 if any(run.bad for run in runs) else 0


sys.exit(asyncio.run(main()))
