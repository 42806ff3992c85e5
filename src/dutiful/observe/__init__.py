"""How the fleet fares, for those who look at it from outside."""
