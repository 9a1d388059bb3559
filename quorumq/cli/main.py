# quorumq/cli/main.py: the command `quorumq`, and what all its subcommands share: how they are found, and how
# they fail.
#
# Subcommands are imported when they are called, and their one-line summaries stand here, so that
# `quorumq --help` and the completion of a shell do not wait for trio, rich and the codecs.
#
# Promise: an error that quorumq raises on purpose reaches a person as one sentence on standard error that says
# what happened and what to do, and a script as the exit code of its class (core/errors.py). Ctrl-C ends with
# 130. A traceback is a bug.
"""The command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from quorumq.core.errors import QuorumqError

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C: 128 + SIGINT, as shells have it."""

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    # name: ("module:object", summary)
    "demo": ("quorumq.cli.demo:demo", "Watch a cluster lose a node and no message."),
    "dev": ("quorumq.cli.dev:dev", "Run a cluster on this machine until Ctrl-C."),
    "serve": ("quorumq.cli.serve:serve", "Run one node."),
    "publish": ("quorumq.cli.publish:publish", "Publish messages to a topic."),
    "consume": ("quorumq.cli.consume:consume", "Take messages from a topic, and ack or reject them."),
    "peek": ("quorumq.cli.peek:peek", "Look at messages without taking them."),
    "deadletters": ("quorumq.cli.deadletters:deadletters", "List, redrive and purge dead letters."),
    "purge": ("quorumq.cli.purge:purge", "Settle a group's backlog unread."),
    "groups": ("quorumq.cli.groups:groups", "Create, rewind and list groups."),
    "status": ("quorumq.cli.status:status", "Show nodes, topics and what is wrong with them."),
    "topics": ("quorumq.cli.topics:topics", "Create, list, change and delete topics."),
    "journal": ("quorumq.cli.journal:journal", "Look into a node's journal files."),
    "bench": ("quorumq.cli.bench:bench", "Measure this machine, with every message verified."),
}


class Reported(click.ClickException):
    """A QuorumqError on its way to a person."""

    def __init__(self, error: QuorumqError) -> None:
        text = (
            str(error).strip()
            or f"the cluster answered {error.code!r} and gave no reason: see `quorumq status`"
        )
        super().__init__(text)
        self.exit_code = error.exit_code

    def show(self, file: Any = None) -> None:
        click.echo(f"quorumq: {self.message}", file=file or sys.stderr)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, however nested; an exception that is none is its own only leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


class Commands(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args and args[0] not in COMMANDS:
                error.message = f"there is no command {args[0]!r}: the commands are {', '.join(COMMANDS)}"
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BaseException as error:
            found = list(leaves(error))
            if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
                raise click.exceptions.Exit(INTERRUPTED) from None
            if all(isinstance(leaf, QuorumqError) for leaf in found):
                first = found[0]
                assert isinstance(first, QuorumqError)
                raise Reported(first) from error
            if len(found) == 1 and found[0] is not error:
                raise found[0] from None
            raise


@click.group(
    "quorumq",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="quorumq", message="quorumq %(version)s")
def main() -> None:
    """A message queue without a leader: any majority of the nodes can publish, deliver and ack.

    Start with `quorumq demo` to see it survive a crash, or with `quorumq dev` to have a cluster of three nodes on
    this machine that `publish`, `consume` and `status` find by themselves. Commands that talk to a cluster take
    its addresses from --node, or from QUORUMQ_NODES, or try 127.0.0.1:7401 to 7403.

    Exit codes: 0 done, 1 failed, 2 a wrong flag, 64 and 66 cannot work as asked or not found, 65 a hold
    was lost, 69 nobody answers, 74 the disk, 75 too few replicas or no space (try again later), 77 and 78 refused,
    130 Ctrl-C.
    """
