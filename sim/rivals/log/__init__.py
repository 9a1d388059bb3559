"""The pull-based log consumer: leaders with in-sync replicas, a group coordinator, partitions that have owners."""
