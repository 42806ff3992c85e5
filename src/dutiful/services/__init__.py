"""The services: duties of the fleet, each correct when two processes do it at once."""
