"""Payload rules as values."""
