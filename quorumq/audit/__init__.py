"""Checks histories (docs/history.md) against the guarantees of docs/protocol.md, on one machine or within Spark.

A history is read once. Its lines become a table of numbers (`lines`, `table`), cut into parts by message, so that all
that is said of one message is in one part. What concerns a run as a whole is small and kept as it is (`context`).
`clocks` places the clocks of several machines. `checker` then checks each part message by message, and returns only
findings and sums (`audit`). The parts of a small history are one table in memory (`files`); those of a large one are
files, or rows of Spark (spark/histories.py).

The package shares with the simulator's checkers the schema and nothing else, and no server imports it.
"""
