# sim/__main__.py: `python -m sim`, one name for everything that judges quorumq without a network.
#
# Commands are imported only when they are asked for: the explorer does not need what the heap needs, and `--help`
# answers at once.
"""The command line of the simulator and the explorer."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "run": ("sim.run_command", "run", "Run whole clusters under random faults, thousands of seeds."),
    "explore": ("sim.explorer.cli", "explore", "Try every interleaving of a small cluster, within bounds."),
}
"""Per subcommand: its module, the click command in it, and the line that `--help` shows."""


class LazyGroup(click.Group):
    """A click group that imports a subcommand when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Judge quorumq without sockets, disks or waiting: the real node core in a world that is made up.

    docs/verification.md says what each command proves, and what it cannot.
    """


if __name__ == "__main__":
    main(prog_name="python -m sim")
