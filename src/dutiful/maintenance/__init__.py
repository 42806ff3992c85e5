"""Maintenance services: one elected worker runs them for the fleet; each is correct when two run it at once."""
