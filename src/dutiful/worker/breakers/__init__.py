"""Circuit breakers as handlers use them."""
