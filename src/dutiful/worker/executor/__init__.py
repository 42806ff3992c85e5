"""Runs one attempt: the handler, its context, its progress, and what came of it."""
