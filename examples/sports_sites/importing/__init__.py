"""Imports the rows of the register's five old queues, each once, however often it is run."""
