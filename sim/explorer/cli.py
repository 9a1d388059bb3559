"""`python -m sim explore`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console

from sim import command_line
from sim.explorer.scenario import Scenario
from sim.explorer.scenarios import SCENARIOS
from sim.explorer.search import Result
from sim.explorer.table import explore as run
from sim.rules import EXPLORED, HUNTED, Rule

CONSOLE = Console(stderr=True)


def all_scenarios() -> dict[str, Scenario]:
    """Return every scenario by name: the general ones, and those of the rules."""
    scenarios = {scenario.name: scenario for scenario in SCENARIOS}
    scenarios.update({rule.scenario.name: rule.scenario for rule in EXPLORED if rule.scenario is not None})
    return scenarios


def row(result: Result) -> str:
    """Return one exploration in a line."""
    left_out = f" without {result.without}" if result.without else ""
    return (
        f"{result.scenario}{left_out}: {result.verdict}; {result.states:,} states, {result.transitions:,} transitions, "
        f"depth {result.depth}, {result.seconds:.1f} s, {result.states_per_s:,.0f} states/s"
    )


@click.command()
@click.option("--scenario", "name", help="Explore this one scenario (see --list).")
@command_line.without
@click.option("--deep", is_flag=True, help="Explore every general scenario with all rules, for long.")
@click.option(
    "--states-max",
    type=click.IntRange(min=1),
    help="States to find at most, per exploration; 60000 unless given, with --deep 1500000.",
)
@click.option("--seconds", default=600.0, show_default=True, help="Processor time at most, per exploration.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per exploration, on standard output.")
@click.option("--list", "list_all", is_flag=True, help="List the scenarios and the rules.")
def explore(
    name: str | None,
    rule: Rule | None,
    deep: bool,
    states_max: int | None,
    seconds: float,
    as_json: bool,
    list_all: bool,
) -> None:
    """Try every interleaving of a small cluster, within bounds.

    The nodes are the real core of quorumq; only the network, the disks, the clocks and the clients around it are
    made up. Messages may be lost, doubled, delayed and reordered, nodes may crash and restart, holds may run out at
    any point. Every promise that one message can show to be broken is checked at every step.

    Without options this makes the table of the rules: each rule's scenario is explored with all rules, which must find
    nothing, and without that rule, which must break a promise; the shortest trace that breaks it is printed.
    It takes a few minutes. With --without, one exploration, of the rule's scenario or of --scenario; with --deep, the
    general scenarios with all rules, which takes half an hour.

    Exit status: 0 if the outcome is the expected one; 1 if a promise breaks with all rules, which is a bug in the
    core, or if none breaks without a rule that this is expected of.
    """
    if list_all:
        list_everything()
        return
    states_max = states_max or (1_500_000 if deep else 60_000)
    with command_line.progress(CONSOLE, as_json, None) as progress:
        task = progress.add_task("exploring")

        def tell(result: Result) -> None:
            text = f"{result.scenario}: {result.states:,} states, depth {result.depth}"
            progress.update(task, description=f"{text}, {result.states_per_s:,.0f} states/s")

        bounds = (states_max, seconds, tell)
        if deep:
            bad = 0
            for scenario in SCENARIOS:
                result = run(scenario, None, *bounds)
                report(result, as_json)
                bad += bool(result.violation)
            sys.exit(1 if bad else 0)
        if name is None and rule is None:
            rows = []
            for one in EXPLORED:
                assert one.scenario is not None
                rows.append((one, run(one.scenario, None, *bounds), run(one.scenario, one, *bounds)))
            good = all(not kept.violation and bool(broken.violation) for _, kept, broken in rows)
            progress.stop()
            for one, kept, broken in rows:
                show(one, kept, broken, as_json)
            sys.exit(0 if good else 1)
        known = all_scenarios()
        if name is not None and name not in known:
            raise click.UsageError(f"no scenario is called {name!r}; there are: {', '.join(known)}")
        chosen = known[name] if name is not None else rule.scenario if rule is not None else None
        if chosen is None:
            assert rule is not None
            raise click.UsageError(f"{rule.name} has no scenario: say --scenario NAME")
        result = run(chosen, rule, *bounds)
    report(result, as_json)
    sys.exit(0 if bool(result.violation) == (rule is not None) else 1)


def report(result: Result, as_json: bool, **of: str) -> None:
    """Print one exploration."""
    if as_json:
        click.echo(json.dumps({**asdict(result), **of, "states_per_s": round(result.states_per_s)}))
        return
    click.echo(row(result))
    for line in result.trace:
        click.echo(f"  {line}")


def show(rule: Rule, kept: Result, broken: Result, as_json: bool) -> None:
    """Print one rule: both explorations, and the trace."""
    if as_json:
        for result in (kept, broken):
            report(result, as_json, rule=rule.name)
        return
    click.echo(f"\n{rule.name}: {rule.says}")
    click.echo(f"  with all rules   {row(kept)}")
    click.echo(f"  left out         {row(broken)}")
    for line in [*kept.trace, *broken.trace]:
        click.echo(f"    {line}")


def list_everything() -> None:
    """Print scenarios and rules, one a line."""
    click.echo("Scenarios (--scenario):")
    for scenario in all_scenarios().values():
        click.echo(f"  {scenario.name:24} {scenario.about}")
    click.echo("\nRules (--without):")
    for rule in EXPLORED:
        click.echo(f"  {rule.name:32} {rule.says}")
    click.echo(
        "\nRules that random runs do not show, with the events that a failure would need, and the evidence:"
    )
    for rule in HUNTED:
        if rule.survives:
            evidence = f"tests/core/{rule.test}" if rule.test else "explorer" if rule.scenario else "none"
            click.echo(f"  {rule.name:32} {rule.survives} ({evidence})")
