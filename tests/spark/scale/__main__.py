"""`python -m tests.spark.scale`: input of any size with planted faults, and the jobs measured on it."""

from __future__ import annotations

import click

from spark.__main__ import Jobs

COMMANDS = {
    "generate": (
        "tests.spark.scale.generate:command",
        "Make histories or dead letters of any size, with planted faults.",
    ),
    "bench": (
        "tests.spark.scale.bench:command",
        "Measure both jobs on generated input, and whether they find every fault.",
    ),
}


@click.group(
    "python -m tests.spark.scale",
    cls=Jobs,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main() -> None:
    """Measure the Spark jobs on input of any size, from a checkout. docs/spark.md has what was measured."""


if __name__ == "__main__":
    main(prog_name="python -m tests.spark.scale")
