"""What is run: each job reads its tables, calls transforms and writes its results."""
