"""Sentences on what is wrong in a cluster, and on its moves, from the reports of its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from quorumq.core.values.printable import plural

CERTIFICATE_WARN_S: Final = 14 * 86400.0
CLOCK_WARN_S: Final = 5.0
"""Seconds between times of day above which delays and retention are off, too (docs/protocol.md, section 2)."""

DISK_ROOMS: Final = {
    "first": "has only its reserve of disk space left: publishes and rejecting are refused there, acks go on",
    "second": "has only its last reserve of disk space left: only acks, purges and deletions are taken there",
    "none": "has a full disk: only deletions are taken there",
}
"""Sentence on a node by the room left on its disk (`disk_capacity`)."""


def problems(rows: Sequence[Mapping[str, Any]], topics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each problem.

    Args:
        rows: one for each node: ``node``, ``address``, ``up``, and the fields of its status, or ``error`` if it is not
            up; ``clock_difference_s``, if it was measured.
        topics: one for each topic, as `quorumq status --json` has them.
    """
    removed = [row for row in rows if row.get("standing") == "removed"]
    for row in removed:
        yield f"{row['node']} was removed from the cluster, and the others refuse it: stop it"
    rows = [row for row in rows if row not in removed]
    voters = next((row["voters"] for row in rows if row.get("voters")), [row["node"] for row in rows])
    counted = [row for row in rows if row["node"] in voters]
    up = sum(row["up"] for row in counted)
    if 0 < up <= len(counted) // 2:
        of = f"{up} of {len(counted)}"
        yield f"only {of} nodes answer: what needs a majority, publish, delivery, ack, waits for others"
    for row in rows:
        name = row["node"] or row["address"]
        if not row["up"]:
            state = "refuses" if row.get("refuses") else "is down"
            yield f"{row['node'] or 'a node'} {state}: {row['error']}"
            continue
        if row.get("resync"):
            yield f"{name} is not trusted and learns from the others: {row['resync']}"
        elif row.get("moved"):
            yield f"{name} takes part in nothing yet: {row['moved']}"
        elif not row.get("trusted", True):
            yield f"{name} is new and waits until every other node has said that it never saw it"
        if row.get("placed") and row["placed_by"] == row["incarnation"]:
            yield f"{name} trusts a data directory that was moved: {row['placed']}"
        if row.get("quarantine_s", 0) > 0:
            yield f"{name} is in quarantine after its start: it delivers again in {row['quarantine_s']:.1f} s"
        if row.get("disk_full"):
            goes_on = DISK_ROOMS.get(row.get("disk_capacity", ""), DISK_ROOMS["first"])
            acks = "" if row.get("disk_capacity") == "none" else "let consumers ack what is there, "
            yield f"{name} {goes_on}; {acks}delete topics that are not needed, or give it a larger disk"
        if row.get("memory_full"):
            yield (
                f"{name} takes more memory than memory_max: publishes, new topics and groups are refused there, acks "
                "go on; let consumers ack what is there, or give it more"
            )
        if row.get("outdated"):
            yield (
                f"the configuration of {name} is out of date, and the members' list counts: {row['outdated']}. Change "
                "its `nodes`, from which it reaches the others first"
            )
        yield from _problems_of_files(name, row)
        yield from _names(name, row.get("names", {}))
        if row.get("slow_answers"):
            yield f"{name} is slow to deliver: {row['slow_answers']}"
        if abs(row.get("clock_difference_s", 0.0)) > CLOCK_WARN_S:
            yield (
                f"{name}'s time of day differs by {row['clock_difference_s']:+.1f} s from this machine's: delays and "
                "retention are off by as much; run a time service"
            )
        if row.get("clock_wrong"):
            worst = row["clock_wrong"][0]
            yield (
                f"{name}: {plural(row['clients_clock_wrong'], 'client')} published with a time of day that is not this "
                f"node's, {worst['client']} at {worst['address']} one that is {worst['ahead_s']:+.1f} s off: groups "
                "rewound to a time go by it; run a time service there, or here"
            )
        gone = [
            other["node"]
            for other in rows
            if other["up"]
            and other["node"] != name
            and not row.get("peers", {}).get(other["node"], {}).get("up")
        ]
        if gone:
            yield f"{name} has no connection to {', '.join(gone)}, which answers here: check the network"
    full = any(row.get("disk_full") for row in rows)
    for topic in topics:
        if full and topic["messages"] and not topic["groups"]:
            yield (
                f"no group reads {topic['topic']!r}: its {plural(topic['messages'], 'message')} stay until one is made "
                "and has acked or purged them, or the topic is deleted"
            )
        for name in topic.get("paused", ()):
            yield f"group {name!r} of {topic['topic']!r} is paused: `quorumq groups resume {topic['topic']} {name}`"
        if topic["lost"]:
            yield (
                f"{plural(topic['lost'], 'message')} of {topic['topic']!r} cannot be found: no replica has the "
                "payload. If a disk or a backup has it, bring that node back with it: it is not given up by itself"
            )
        if topic["missing"]:
            yield (
                f"a replica of {topic['topic']!r} knows of {plural(topic['missing'], 'message')} that it does not have "
                "yet; it asks the others for them"
            )


def _problems_of_files(name: str, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of files that a node reads while it runs."""
    remaining_s = row.get("certificate_expires_s")
    if remaining_s is not None and remaining_s < CERTIFICATE_WARN_S:
        when = f"ends in {remaining_s // 86400} days" if remaining_s >= 0 else "has ended"
        yield f"{name}'s certificate {when}: put a new one in place, it is read without a restart"
    if row.get("clients_file_problem"):
        yield f"{name} goes by the clients file of before: {row['clients_file_problem']}"
    if row.get("config_file_problem"):
        yield f"{name} goes by its configuration file of before: {row['config_file_problem']}"
    if keys := row.get("needs_restart"):
        yield f"{name} needs a restart for other values of {', '.join(keys)}, which its configuration file has by now"


def _names(node: str, used: Mapping[str, int]) -> Iterator[str]:
    deleted = used["topics_deleted"] + used["groups_deleted"] if used else 0
    if used and 2 * deleted >= used["deleted_max"]:
        yield (
            f"{node} keeps {deleted} names of deleted topics and groups, of {used['deleted_max']} that it can keep: "
            "then no new name is taken, so use names again instead of new ones"
        )


def move_lines(rows: Sequence[Mapping[str, Any]], topic: str = "", partition: int | None = None) -> list[str]:
    """Return a line for each move that waits, of one partition, a topic or all, with the nodes that it waits for."""
    says = {
        "learning": "is new in {where} and does not vote there yet",
        "leaving": "left {where} and keeps its payload until all replicas have it",
        "limited": "gives no payload of {where} now, by its limit of moves",
        "away": "has a replica of {where}, whose payload a node that left keeps as well and cannot be reached",
        "full": "has no space for the payload of {where} that it lacks: make space there, or move it back",
        "copying": "copies its payload of {where} to nodes that get a replica then",
        "short": "has a replica of {where}, which is to have more replicas than there are nodes for",
        "chosen": "knows that a move of {where} was chosen, which no majority has heard of yet",
    }
    lines = []
    for row in rows:
        for move in row.get("moves", ()):
            other = None not in (partition, move["partition"]) and move["partition"] != partition
            if topic and (move["topic"] != topic or other):
                continue
            where = move["topic"] + ("" if move["partition"] is None else f"/{move['partition']}")
            waits = f": it waits for {', '.join(move['waits_for'])}" if move["waits_for"] else ""
            lines.append(f"{row['node']} {says[move['state']].format(where=where)}{waits}{progress_of(move)}")
    return lines


def progress_of(move: Mapping[str, Any]) -> str:
    """Return the progress of a move's copy for people, with a separator in front; "" if there is none yet."""
    messages, rate, seconds = (move.get(name) for name in ("messages_left", "messages_per_s", "seconds_left"))
    if messages is None:
        return ""
    text = f"; {plural(messages, 'message')} to go"
    if rate is not None:
        text += f", {rate:,.0f} a second"
    return text + (f", {timedelta(seconds=round(seconds))} left" if seconds is not None else "")
