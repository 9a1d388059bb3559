"""Declaration of survivors, if more directories are lost than the nodes can make up for by themselves.

The declaration, and why it is safe, are in core/recovery/survivors.py: the node that is asked refuses all that it
cannot be sure of. The command lists the losses, asks for confirmation, and waits until it is over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from quorumq.cli.common import (
    confirmed,
    json_option,
    nodes_option,
    print_json,
    run,
    say,
    timeout_option,
    yes_option,
)
from quorumq.cli.status import ASK_TIMEOUT_S, cluster_report
from quorumq.core.values.errors import TooFewReplicas
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from quorumq.core.messages import DeclareSurvivorsReply

ANSWER_S: Final = 30.0
"""Seconds that a node may take to ask all others, twice, by default."""

NAMED_MAX: Final = 20
"""Partitions that are named to a person; JSON has all of them."""


@click.group()
def survivors() -> None:
    """Go on without directories that were lost for good.

    docs/operations.md, "When more disks are lost than a majority can spare", has the steps.
    """


@survivors.command()
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would be forgotten, and declare nothing.")
@click.option(
    "--wait",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0.0),
    help="Seconds to wait until all nodes take part again.",
)
@timeout_option(ANSWER_S, "Seconds that a node has to ask all others.")
@nodes_option
@json_option
def declare(
    yes: bool, dry_run: bool, wait: float, timeout: float, nodes: tuple[str, ...], as_json: bool
) -> None:
    """Declare that the nodes that are trusted are all that is left.

    A node that lost its directory learns from the others what it may have promised. If too few of them are left, as
    when two of three lost theirs, it waits. After this command it goes on with what the others have. All that only lost
    directories had is gone, and messages that only they knew to be acked are delivered again. The command lists the
    losses, and asks, unless --yes is given.

    Every node of the cluster must be up first: with its directory if it still has one, the others with empty ones.
    Processes that ran with the lost ones must be stopped for good. Otherwise it is refused, by the name of the node,
    with exit code 75; if nothing has to be declared, with 64.
    """
    from quorumq.cli.probe import ask
    from quorumq.core.messages import DeclareSurvivors, DeclareSurvivorsReply, Metadata, MetadataReply

    rows = cluster_report(nodes, min(ASK_TIMEOUT_S, timeout))["nodes"]
    trusted = [row["address"] for row in rows if row["up"] and row["trusted"]]
    if not trusted:
        addresses = ", ".join(row["address"] for row in rows)
        if not any(row["up"] for row in rows):
            raise TooFewReplicas(f"no node answers at {addresses}: start every node of the cluster first")
        raise TooFewReplicas(
            f"no node that answers at {addresses} is trusted: start one with a directory that is whole; "
            "`quorumq export` reads messages out of one that is not"
        )
    _, plan, known = ask(trusted[0], DeclareSurvivors(), Metadata(), timeout=timeout)
    assert isinstance(plan, DeclareSurvivorsReply), plan
    assert isinstance(known, MetadataReply), known
    while known.more is not None:
        _, page = ask(trusted[0], Metadata(after=known.more), timeout=timeout)
        assert isinstance(page, MetadataReply), page
        known = known._replace(topics=(*known.topics, *page.topics), more=page.more)
    fields = _fields(plan, known)
    if not as_json:
        say(_words(fields), err=not dry_run)
    if not dry_run:
        if not yes:
            run(confirmed, f"declare that {_names(plan.survivors)} is all there is?")
        ask(trusted[0], DeclareSurvivors(plan.survivors), timeout=timeout)
        fields["waiting"] = _wait(trusted, plan, wait)
    if as_json:
        print_json({**fields, "declared": not dry_run})
    elif not dry_run:
        say(f"declared: {_names(plan.survivors)} is all there is")
    if fields["waiting"]:
        raise TooFewReplicas(
            f"{_names(fields['waiting'])} did not take part again within {wait:g} s: see `quorumq status`, and do it "
            "again if they wait for the same as before"
        )


def _fields(plan: DeclareSurvivorsReply, known: Any) -> dict[str, Any]:
    """Return the survivors and learners, and partitions that begin empty or that a majority may have left out."""
    from quorumq.core.cluster.rounds import majority_of

    empty, short = [], []
    for topic in known.topics:
        for number, members in enumerate(topic.replicas):
            there = sum(node in plan.survivors for node in members)
            if not there:
                empty.append(f"{topic.name}/{number}")
            elif there < len(members) - majority_of(len(members)) + 1:
                short.append(f"{topic.name}/{number}")
    return {
        "survivors": list(plan.survivors),
        "learners": [learner._asdict() for learner in plan.learners],
        "may_lack": short,
        "begin_empty": empty,
        "waiting": [],
    }


def _words(fields: dict[str, Any]) -> str:
    lost = _names([learner["node"] for learner in fields["learners"]])
    lines = [f"left: {_names(fields['survivors'])}"]
    lines += [f"learns from what is left: {item['node']} ({item['why']})" for item in fields["learners"]]
    lines += [
        f"What the lost directories of {lost} had, and none that is left has, is forgotten:",
        f"- messages, acks and dead letters in {_some(fields['may_lack'])}; what only they knew to be acked is "
        "delivered again",
    ]
    if fields["begin_empty"]:
        lines.append(f"- everything in {_some(fields['begin_empty'])}, of which no replica is left")
    lines.append("- topics, groups, and changes of settings (deletions, too) of which only they had heard")
    return "\n".join(lines)


def _some(partitions: list[str]) -> str:
    if not partitions:
        return "no partition"
    names = f"{', '.join(partitions[:NAMED_MAX])}{', …' if len(partitions) > NAMED_MAX else ''}"
    return f"{plural(len(partitions), 'partition')}: {names}" if len(partitions) > 1 else names


def _names(nodes: Any) -> str:
    return " and ".join(nodes) if len(nodes) < 3 else f"{', '.join(nodes[:-1])} and {nodes[-1]}"


def _wait(addresses: list[str], plan: DeclareSurvivorsReply, seconds: float) -> list[str]:
    """Return the nodes that are not trusted yet after ``seconds``."""
    until = time.monotonic() + seconds
    while True:
        trusted = {row["node"] for row in cluster_report(addresses)["nodes"] if row["up"] and row["trusted"]}
        waiting = [learner.node for learner in plan.learners if learner.node not in trusted]
        if not waiting or time.monotonic() >= until:
            return waiting
        time.sleep(0.2)
