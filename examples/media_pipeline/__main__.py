"""`python -m examples.media_pipeline` tells the story; with `--serve` it stays, for people to click."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from examples.media_pipeline.story import tell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.media_pipeline", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve the live page until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="of the page (8000; 0 takes a free one)")
    chosen = parser.parse_args()
    console = Console()
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story tells of it
    with tempfile.TemporaryDirectory(prefix="media-pipeline-") as folder:
        try:
            if chosen.serve:
                from examples.media_pipeline.serve import serve  # the story needs no web framework

                asyncio.run(serve(console, Path(folder), chosen.port))
            elif not asyncio.run(tell(console, Path(folder))):
                return 1
        except KeyboardInterrupt:
            console.print("\nGood-bye.")
    return 0


sys.exit(main())
