"""Connections to Postgres and how values travel to it."""
