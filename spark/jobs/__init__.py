"""Jobs to run: each reads its tables, calls transforms and writes its results."""
