"""`python -m sim`, one name for everything that checks quorumq without a network.

Commands are imported only if they are asked for: the explorer does not need those of the simulator, and `--help`
answers at once.
"""

from __future__ import annotations

import click

from quorumq.commands import Commands

COMMANDS = {
    "run": ("sim.run_command:run", "Run whole clusters under random faults, thousands of seeds."),
    "shrink": ("sim.shrink_command:shrink", "Make a failing run as small as it gets."),
    "diagram": ("sim.diagram_command:diagram", "Draw a run as one page, or tell one message's story."),
    "real": ("sim.real_command:real", "Run real processes under faults: a workload of ours, or yours."),
    "explore": ("sim.explorer.cli:explore", "Try every interleaving of a small cluster, within bounds."),
}
"""Import path of the click command and the line that `--help` shows, by subcommand."""


@click.group(cls=Commands, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Check quorumq without sockets, disks or waiting: the real node core in a world that is made up.

    docs/verification.md has what each command proves and cannot prove.
    """


if __name__ == "__main__":
    main(prog_name="python -m sim")
