"""Brokers of task frameworks on quorumq. Each module is an extra, and needs its framework installed.

`taskiq`: docs/from-taskiq.md. `dramatiq`: docs/from-dramatiq.md. `kombu`, for Celery: docs/from-celery.md.
"""
