"""An example: a register of sports sites whose slow analyses never hold up its mail, and the night that tests it."""
