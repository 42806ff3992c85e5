"""Connections to Postgres, and the conversion of values."""
