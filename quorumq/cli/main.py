"""The command `quorumq`.

Subcommands are imported when they are called, and their one-line summaries stand here, so that
`quorumq --help` and the completion of a shell do not wait for trio, rich and the codecs. If one fails,
quorumq/commands.py prints the error.
"""

from __future__ import annotations

from typing import Final

import click

from quorumq.commands import Commands

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    # name: ("module:object", summary)
    "demo": ("quorumq.lab.demo:demo", "Watch a cluster lose a node and no message."),
    "dev": ("quorumq.lab.dev:dev", "Run a cluster on this machine until Ctrl-C."),
    "init": ("quorumq.cli.init:init", "Write the configuration files of a new cluster."),
    "serve": ("quorumq.cli.serve:serve", "Run one node."),
    "publish": ("quorumq.cli.publish:publish", "Publish messages to a topic."),
    "consume": ("quorumq.cli.consume:consume", "Take messages from a topic, and ack or reject them."),
    "work": ("quorumq.cli.work:work", "Call a Python function with each message."),
    "peek": ("quorumq.cli.peek:peek", "Look at messages without taking them."),
    "show": ("quorumq.cli.show:show", "Show the life of one message."),
    "deadletters": ("quorumq.cli.deadletters:deadletters", "List, redrive and purge dead letters."),
    "purge": ("quorumq.cli.purge:purge", "Settle a group's backlog unread."),
    "groups": ("quorumq.cli.groups:groups", "Create, describe, rewind and delete groups."),
    "clients": ("quorumq.cli.clients:clients", "Say who may connect, and what for."),
    "certificates": (
        "quorumq.cli.certificates:certificates",
        "Renew certificates of nodes, and replace their authority.",
    ),
    "gateway": ("quorumq.cli.gateway:gateway", "Open a cluster to SQS, JSON and browsers."),
    "status": ("quorumq.cli.status:status", "Show nodes, topics and what is wrong with them."),
    "topics": ("quorumq.cli.topics:topics", "Create, list, change and delete topics."),
    "nodes": ("quorumq.cli.nodes:nodes", "List the members of a cluster, add and remove nodes."),
    "partitions": ("quorumq.cli.partitions:partitions", "Move replicas from one node to another."),
    "survivors": ("quorumq.cli.survivors:survivors", "Go on after directories were lost for good."),
    "export": ("quorumq.cli.export:export", "Read messages out of a stopped node's directory."),
    "audit": ("quorumq.cli.audit:audit", "Check every guarantee against histories of what happened."),
    "bench": ("quorumq.lab.bench:bench", "Measure this machine, with every message verified."),
}


@click.group(
    "quorumq",
    cls=Commands,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="quorumq", message="quorumq %(version)s")
def main() -> None:
    """A message queue without a leader: any majority of the nodes can publish, deliver and ack.

    Start with `quorumq demo` to see it survive a crash, or with `quorumq dev` to have a cluster of three nodes on
    this machine that `publish`, `consume` and `status` find by themselves. Commands that talk to a cluster take
    its addresses from --node, or from QUORUMQ_NODES. If neither is given, they try 127.0.0.1:7401 to 7403.

    Exit codes: 0 done, 1 failed, 2 a wrong flag, 64 and 66 cannot work as asked or not found, 65 a hold
    was lost, 69 no node answers, 74 the disk, 75 too few replicas or no space (try again later), 77 and 78 refused,
    130 Ctrl-C, 143 SIGTERM.
    """  # noqa: D401 - the help says what the program is
