"""Cancellations that a library has swallowed."""

import asyncio


def check_cancelled() -> None:
    """Raises CancelledError if the current task was cancelled, and something kept that from it.

    `asyncio.wait_for` does so until Python 3.12 if it ends in the same moment; redis uses it wherever it has a timeout.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
