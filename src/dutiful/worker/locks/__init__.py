"""Named locks of handlers."""
