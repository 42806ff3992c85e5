"""Where pages are: an object store, tarballs on their way into it, and the edge that serves them."""
