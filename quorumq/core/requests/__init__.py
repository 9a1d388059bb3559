"""Client requests, each from its first check to its answer."""
