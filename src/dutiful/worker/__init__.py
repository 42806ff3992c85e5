"""The worker: lanes claim jobs, the executor runs them, the settler stores outcomes, a thread renews leases."""

from dutiful.worker.worker import Worker

__all__ = ["Worker"]
