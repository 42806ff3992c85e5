"""Example programs; each runs by itself."""
