"""Deliveries pass on hints that there are new jobs."""
