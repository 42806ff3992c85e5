"""What the host does: plain async code, which knows neither Dutiful nor a broker."""
