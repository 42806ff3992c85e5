"""The HTTP API of the host."""
