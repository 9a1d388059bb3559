"""The data pipeline of quorumq on Spark: a data source, the analysis of dead letters, the audit of histories.

Needs the extra ``quorumq[spark]``; nothing in ``quorumq`` imports this. ``python -m spark --help`` lists the jobs,
docs/spark.md is their manual.
"""
