"""A register of sports sites, whose slow analyses never delay its mail."""
