"""Jobs: what can be read of them, and the acts on them."""
