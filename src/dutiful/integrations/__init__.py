"""Libraries that handlers use and that need care around attempts; none is imported, each is found if it is loaded."""
