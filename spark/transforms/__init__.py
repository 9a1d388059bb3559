"""Pure functions from DataFrames to DataFrames: no reading, no writing, no session."""
