"""The file for `spark-submit`: `spark-submit --master URL $(python -m quorumq.spark where) audit …`.

Spark runs it as a script, so it knows no package until it has named its own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click


@click.command("where")
def where() -> None:
    """Print the file to give to `spark-submit`, with a job and its options behind it."""
    click.echo(Path(__file__).resolve())


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    package = "quorumq.spark" if here.parent.name == "quorumq" else "spark"
    sys.path.insert(0, str(here.parents[package.count(".")]))
    import_module(f"{package}.__main__").main(prog_name=f"spark-submit {Path(__file__).name}")
