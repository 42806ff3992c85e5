"""A small media service: jobs fetch a file, make something of it and hand in the product."""
