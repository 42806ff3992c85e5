"""Dutiful against its peers, side by side in one sitting: `python -m benchmarks --help`."""
