"""Metrics as values: catalogue, sketches, estimates, alert rules."""
