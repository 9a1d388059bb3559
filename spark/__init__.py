"""The data pipeline of quorumq on Spark: a data source, the analysis of dead letters, the audit of histories.

Needs the extra ``quorumq[spark]``; nothing in ``quorumq`` imports this. ``python -m spark --help`` lists the jobs,
docs/spark.md is their manual.

Installed, this is ``quorumq.spark`` (docs/decisions/0012): so files here name each other by relative imports only.
"""

COMMAND = f"python -m {__name__}"
"""The command line that calls the jobs from here."""
