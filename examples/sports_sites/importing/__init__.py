"""Takes over the rows of the five queues that the register had before, each once, however often it is run."""
