"""A process that runs jobs until it is killed: `python -m examples.media_pipeline.worker_process FOLDER`."""

import asyncio
import sys
from pathlib import Path

from examples.media_pipeline.service import media_queue


async def main(folder: Path) -> None:
    async with media_queue(folder):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
