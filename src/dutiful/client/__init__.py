"""Enqueues jobs, cancels them, reads them and waits for their results."""
