"""Connections to nodes, failover, and threads that run a client."""
