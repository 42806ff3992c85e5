"""Enqueues jobs, cancels them, looks them up and waits for their results."""
