"""The pure heart: values and decisions, with no clock, randomness or I/O of their own."""
