"""Deliveries: ways to pass on hints that there is work."""
