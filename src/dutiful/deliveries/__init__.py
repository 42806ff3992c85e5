"""The deliveries: ways to pass on that there is something to look at."""
