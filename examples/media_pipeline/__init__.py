"""A small media service: jobs download a file, process it and upload the product."""
