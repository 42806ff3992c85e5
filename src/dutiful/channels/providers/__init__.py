"""Providers of the channels that are built in."""
