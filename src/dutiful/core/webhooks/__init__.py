"""Webhook messages and endpoints as values."""
