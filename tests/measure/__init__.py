"""Programs that measure the figures of a page; each is `python -m tests.measure.NAME`."""
