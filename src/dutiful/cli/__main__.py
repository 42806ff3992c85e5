"""`python -m dutiful.cli` is `dutiful`."""

import sys

from dutiful.cli import main

sys.exit(main())
