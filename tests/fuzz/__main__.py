"""`python -m tests.fuzz`: generated cases, in any number, each named by a seed and its number."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from tests.fuzz import FUZZERS
from tests.fuzz.run import Fuzzer, Report, run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attack one part of quorumq with generated cases.

    Ends with 1 if a case failed, and prints the command that runs that case alone. docs/verification.md
    describes each.
    """


def show(report: Report) -> None:
    click.echo(
        f"{report.fuzzer}: {report.cases} cases from {report.first} of seed {report.seed}, "
        f"{report.units} {report.unit} in {report.seconds:.1f} s "
        f"({report.units / max(report.seconds, 1e-9):.0f} a second); "
        f"slowest: case {report.slowest}, {report.slowest_s * 1000:.0f} ms; {report.peak_mib} MiB at most"
    )
    for outcome, count in report.outcomes.items():
        click.echo(f"  {count:>10}  {outcome}")
    for failure in report.failures:
        click.echo(f"  {failure['error']}\n    {failure['again']}")


def command(fuzzer: Fuzzer) -> click.Command:
    @click.command(fuzzer.name, help=fuzzer.summary, context_settings={"show_default": True})
    @click.option("--seed", type=click.IntRange(0), default=1, help="Of all cases.")
    @click.option("--first", type=click.IntRange(0), default=0, help="The number of the first case.")
    @click.option(
        "--count", type=click.IntRange(1), help="How many cases; 1000 where no time is given either."
    )
    @click.option("--seconds", type=click.FloatRange(0), help="For how long at most.")
    @click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
    def attack(count: int | None, seconds: float | None, as_json: bool, **where: Any) -> None:
        if count is None and seconds is None:
            count = 1000
        report = run(
            fuzzer, count=count, seconds=seconds, say=lambda text: click.echo(text, err=True), **where
        )
        if as_json:
            click.echo(json.dumps(report._asdict()))
        else:
            show(report)
        sys.exit(1 if report.failures else 0)

    return attack


for each in FUZZERS.values():
    main.add_command(command(each))

if __name__ == "__main__":
    main(prog_name="python -m tests.fuzz")
