"""Payloads: their schema from a handler's signature, and the rules that they have to keep."""
