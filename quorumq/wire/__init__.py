"""Bytes to the core's values and back: frames, messages, batches, receipts. See docs/wire-format.md."""
