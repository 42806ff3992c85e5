"""Pure values and decisions, without a clock, randomness or I/O."""
