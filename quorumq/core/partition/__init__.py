"""One partition on one node: its tables, and the duties that work on them (docs/architecture.md)."""
