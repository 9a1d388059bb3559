"""Publishing: sessions, batches, partitions and outcomes."""
