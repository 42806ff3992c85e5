"""`python -m examples.sports_sites` tells the story of a night, then checks that it adds up."""

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from examples.sports_sites.story import tell


def main() -> int:
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story tells of it
    with tempfile.TemporaryDirectory(prefix="sports-sites-") as folder:
        return 0 if asyncio.run(tell(Console(), Path(folder))) else 1


sys.exit(main())
