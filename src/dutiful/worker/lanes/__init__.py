"""Lanes: find queues with work, claim their jobs, and run them in slots."""
