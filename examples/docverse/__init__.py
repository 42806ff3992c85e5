"""A documentation host: builds are uploaded, editions follow them, an edge serves the pages."""
