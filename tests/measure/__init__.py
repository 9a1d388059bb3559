"""Programs that measure what a page names; each is `python -m tests.measure.NAME`."""
