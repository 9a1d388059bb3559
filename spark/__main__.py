"""`python -m spark`. Jobs are imported when they are called: the list of them needs no Spark."""

from __future__ import annotations

from typing import Any

import click

from quorumq.commands import Commands, Reported
from quorumq.core.values.errors import UsageError

from . import COMMAND
from .errors import told

COMMANDS = {
    "deadletters": (
        f"{__package__}.jobs.deadletters:command",
        "Analyse dead letters: tables, an HTML report, a redrive plan.",
    ),
    "audit": (
        f"{__package__}.jobs.audit:command",
        "Check every guarantee against histories of what happened.",
    ),
    "columns": (f"{__package__}.columns:columns", "Print the columns of the data source's tables."),
    "where": (f"{__package__}.submit:where", "Print the file to give to spark-submit."),
}
"""Per job: the place of the click command, and the line that `--help` shows."""

EXTRA = ("pyspark", "pyarrow", "matplotlib", "jinja2", "numpy")
"""Packages that the extra `quorumq[spark]` brings."""


class Jobs(Commands):
    """The group of jobs. It names the packages to install if Spark is missing, and the error inside of Spark."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in EXTRA:
                raise
            raise Reported(UsageError(f"{missing} is not installed: pip install 'quorumq[spark]'")) from error
        except Exception as error:
            ours = told(error)
            if ours is None:
                raise
            raise Reported(ours) from error


@click.group(
    COMMAND,
    cls=Jobs,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main() -> None:
    """Dead letters and delivery histories of quorumq in Spark.

    Needs the extra `pip install 'quorumq[spark]'` and Java 17 or newer; docs/spark.md is the manual. Exit codes are
    those of `quorumq`: 0 done, 1 failed, or a guarantee is broken, 2 a wrong flag, 64 and 66 cannot work as asked or
    not found, 69 no node answers, 70 Spark failed, 74 the disk or what is on it, 130 Ctrl-C.
    """


if __name__ == "__main__":
    main(prog_name=COMMAND)
