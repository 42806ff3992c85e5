"""Finds secrets in payloads and texts."""
