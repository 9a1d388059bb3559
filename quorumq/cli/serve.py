"""`quorumq serve`: one node in the foreground."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--config",
    "config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The node's configuration file, node.toml.",
)
@click.option(
    "--directory-is-newest",
    is_flag=True,
    help="Trust a data directory that was copied or restored, without asking the other nodes.",
)
@click.option(
    "--join",
    multiple=True,
    metavar="ADDRESS",
    help="With an empty directory: ask the node there to let this one in. May be repeated.",
)
def serve(config: Path, directory_is_newest: bool, join: tuple[str, ...]) -> None:
    """Run one node until SIGTERM or Ctrl-C, which stop it cleanly.

    The configuration names this node, all nodes of the cluster with their addresses, the cluster's secret and the
    data directory; docs/operations.md describes every setting. If a node was stopped cleanly, it takes part again
    at once after its next start. If it crashed, it waits until every hold that it may have granted has run out: one
    hold_time_max, which `quorumq status` counts down.

    If a data directory was copied, or restored from a backup, it takes part when every other node has said that it
    knows of nothing newer. If another node cannot be started, --directory-is-newest spares that. Give it only if no
    node has run from another copy of this directory since this one was taken: else messages that were acked are
    delivered again.

    If a node is to be added to a running cluster, it has join = ["HOST:PORT", ...] in its file, or --join, and no table
    of nodes. It asks, and logs that, until `quorumq nodes add` has made it a member. Afterwards its directory has all
    that it needs.

    The exit code is 0 after a clean stop, and otherwise that of the reason, which is the last line of the log.
    """
    from quorumq.node.reread import ConfigFile
    from quorumq.node.serve import run

    raise click.exceptions.Exit(run(ConfigFile(config, join), directory_is_newest))
