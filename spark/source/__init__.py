"""The data source ``quorumq``: data directories of nodes, running clusters and histories as tables."""
