"""Circuit breakers as values."""
