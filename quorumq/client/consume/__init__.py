"""Consuming: fetching ahead, settling and worker pools."""
