"""Threads, event loops and calls between them."""
