"""The working side: lanes claim, attempts run, the settler settles, the keeper keeps leases alive."""

from dutiful.worker.worker import Worker

__all__ = ["Worker"]
