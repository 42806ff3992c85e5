"""`python -m examples.media_pipeline` runs the story; with `--serve` it serves a live page."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dutiful import UsageError
from examples.media_pipeline.story import run_story
from examples.serving import ended_by_term


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.media_pipeline", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve the live page until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="of the page (default: 8000; 0: any free one)")
    chosen = parser.parse_args()
    console = Console()
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story prints events itself
    with tempfile.TemporaryDirectory(prefix="media-pipeline-") as folder:
        try:
            if chosen.serve:
                from examples.media_pipeline.serve import serve  # the story needs no web framework

                asyncio.run(ended_by_term(serve(console, Path(folder), chosen.port)))
                return 0
            return 0 if asyncio.run(ended_by_term(run_story(console, Path(folder)))) else 1
        except KeyboardInterrupt:
            console.print("\nGood-bye.")
            return 0 if chosen.serve else 130  # an interrupted story has proven nothing
        except UsageError as error:
            parser.error(str(error))


sys.exit(main())
