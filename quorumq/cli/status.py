"""State of a cluster, as each of its nodes reports it.

Each node reports its own knowledge; nothing here waits for a majority, because this is the command for a time
without one. Counts of a partition differ between its replicas for a moment all the time: messages, dead letters and
settled messages are shown as the most that any replica has, ready or held ones as the middle of the replicas' counts,
as a majority would have it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from quorumq.cli.common import console, json_option, nodes_option, print_json, table, timeout_option
from quorumq.core.values.printable import plural
from quorumq.node.problems import move_lines, problems

ASK_TIMEOUT_S: Final = 2.0

KEPT_LONG_S: Final = 60.0
"""Seconds: if a group keeps the oldest message for as long, the output names it."""

KEEPERS_SHOWN: Final = 10
"""Topics for which it names such a group."""

N = TypeVar("N", int, float)


@click.command()
@nodes_option
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--every",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Seconds between, with --watch.",
)
@timeout_option(ASK_TIMEOUT_S, "Seconds that a node has to answer, before it is shown as down.")
@json_option
def status(nodes: tuple[str, ...], watch: bool, every: float, timeout: float, as_json: bool) -> None:
    """Show every node of a cluster, its topics and groups, and warnings.

    One address is enough: that node has the others'. If a node does not answer, it is shown as down, and the rest
    all the same. If a node is in quarantine after a crash, it stores and acks, but does not deliver until its countdown
    is over. The exit code is 69 if no node answers.
    """
    if not watch:
        report = cluster_report(nodes, timeout)
        if as_json:
            print_json(report)
        else:
            _print(report)
        _check_any(report, nodes)
        return
    if as_json or sys.stdout is None or not sys.stdout.isatty():
        while True:
            (print_json if as_json else _print)(cluster_report(nodes, timeout))
            if sys.stdout is not None:
                sys.stdout.flush()
            time.sleep(every)
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(_tables(cluster_report(nodes, timeout)), refresh=True)
            time.sleep(every)


def cluster_report(addresses: Sequence[str], timeout: float = ASK_TIMEOUT_S) -> dict[str, Any]:
    """Ask every node of the cluster, at once.

    Args:
        addresses: nodes to begin with; the ones they name are asked as well.

    Returns:
        ``nodes`` (one mapping each; ``up`` is False with ``error`` for one that does not answer), ``topics``
        (with ``groups``), ``problems`` (sentences), ``cluster_id`` ("" if no node answers).

    Raises:
        UsageError: the file in QUORUMQ_TLS_CA cannot be used.
    """
    from quorumq.wire.tls import client_context, own_ca

    if ca := own_ca():
        client_context(ca)  # a file that cannot be used is this machine's fault: no node is down
    asked: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    pending = list(dict.fromkeys(addresses))
    with ThreadPoolExecutor(max_workers=16) as pool:
        while pending:
            for address, fields in zip(pending, pool.map(lambda a: _ask(a, timeout), pending), strict=True):
                asked[address] = fields
                names.update(fields.pop("others", {}))
            pending = [address for address in names.values() if address and address not in asked]
    by_address = {address: name for name, address in names.items()}
    rows = []
    for address, fields in asked.items():
        # A first address that does not answer, and that no node names, is of no cluster that we know.
        if fields["up"] or address in by_address or not names:
            rows.append({"node": by_address.get(address, ""), "address": address, **fields})
    seen: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (not row["up"], row["node"], row["address"])):
        seen.setdefault(row["node"] or row["address"], row)  # one node may be reached by two addresses
    nodes = sorted(seen.values(), key=lambda row: (row["node"], row["address"]))
    up = [row for row in nodes if row["up"]]
    topics = _topics(up)
    return {
        "cluster_id": up[0]["cluster_id"] if up else "",
        "nodes": nodes,
        "topics": topics,
        "problems": [*problems(nodes, topics)],
    }


def _ask(address: str, timeout: float) -> dict[str, Any]:
    from quorumq.cli.probe import ask, whole_status
    from quorumq.core.messages import Metadata, MetadataReply, StatusReply, StatusRequest, Welcome
    from quorumq.core.values.errors import QuorumqError, Unauthorized

    before = time.time()
    try:
        welcome, reply, known = ask(address, StatusRequest(), Metadata(), timeout=timeout)
    except Unauthorized:  # that is about the asking client, not about the node
        raise
    except QuorumqError as error:
        return _not_up(str(error))
    after = time.time()
    if not (
        isinstance(welcome, Welcome) and isinstance(reply, StatusReply) and isinstance(known, MetadataReply)
    ):
        return _not_up(f"{address} does not answer as a node does: is it a newer version?", refuses=True)
    try:
        fields = whole_status(address, reply, timeout)
    except QuorumqError as error:
        return _not_up(str(error))
    return {
        "up": True,
        **fields,
        "software": welcome.software,
        "clock_difference_s": _outside(welcome.wall_ms, int(before * 1000), int(after * 1000)) / 1000,
        "others": {info.node: info.address for info in known.nodes},
    }


def _outside(time_of_day: int, before: int, after: int) -> int:
    """Return how far a time lies outside of two others: 0 for a right clock, however late it answers."""
    return time_of_day - min(max(time_of_day, before), after)


def _not_up(error: str, *, refuses: bool = False) -> dict[str, Any]:
    """Return the fields of a node that gives no answer to use. If TLS fails, or it is no node, it is not down."""
    over_tls = "TLS" in error or "the certificate is refused" in error
    return {"up": False, "error": error, "refuses": refuses or over_tls}


def _middle(values: Sequence[N]) -> N:
    return sorted(values)[(len(values) - 1) // 2]


def _topics(up: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return topics with their groups, merged over the replicas that answered."""
    replicas: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in up:
        for part in row.get("partitions", ()):
            replicas.setdefault(part["topic"], {}).setdefault(part["partition"], []).append(part)
    topics = []
    for topic in sorted(replicas):
        groups: dict[str, dict[str, int]] = {}
        kept: dict[str, float] = {}
        paused: dict[str, None] = {}
        limits: dict[str, float] = {}
        messages = missing = lost = 0
        for views in replicas[topic].values():
            here = max(view["messages"] for view in views)
            messages += here
            missing += max(view.get("missing", 0) - view.get("lost", 0) for view in views)
            lost += max(view.get("lost", 0) for view in views)
            for name in sorted({name for view in views for name in view["groups"]}):
                of_group = [view["groups"][name] for view in views if name in view["groups"]]
                total = groups.setdefault(name, {"ready": 0, "held": 0, "dead": 0, "done": 0})
                ages = [counts["kept_s"] for counts in of_group if counts.get("kept_s") is not None]
                if any(counts.get("paused") for counts in of_group):
                    paused[name] = None
                if per_second := max(counts.get("per_second", 0) for counts in of_group):
                    limits[name] = per_second
                if ages and not name.endswith("!dead"):
                    kept[name] = max(kept.get(name, 0.0), _middle(ages))
                dead = max(counts["dead"] for counts in of_group)
                ready = _middle([counts["available"] for counts in of_group])
                held = _middle([counts["held"] for counts in of_group])
                total["ready"] += ready
                total["held"] += held
                total["dead"] += dead
                # A redriven message has a record too, and is not done.
                settled = max(counts["settled"] for counts in of_group) - dead
                total["done"] += max(min(settled, here - ready - held - dead), 0)
        topics.append(
            {
                "topic": topic,
                "partitions": len(replicas[topic]),
                "messages": messages,
                "missing": missing,
                "lost": lost,
                "groups": groups,
                "paused": list(paused),
                "limits": limits,
                "kept_by": max(kept, key=lambda name: kept[name], default=None),
                "kept_s": max(kept.values(), default=None),
            }
        )
    return topics


def _check_any(report: Mapping[str, Any], nodes: Sequence[str]) -> None:
    if not any(row["up"] for row in report["nodes"]):
        from quorumq.cli.probe import no_node

        raise no_node(nodes, [row["error"].removeprefix(f"{row['address']}: ") for row in report["nodes"]])


def _free(row: Mapping[str, Any]) -> str:
    if row.get("disk_full"):
        return "[red]full[/]"
    free = row.get("disk_free", -1)
    if free < 0:
        return ""
    return f"{free / 1e9:.1f} GB" if free < 1e10 else f"{free / 1e9:.0f} GB"


def _sees(row: Mapping[str, Any]) -> str:
    peers = row.get("peers", {})
    up = [name for name, peer in peers.items() if peer.get("up")]
    if peers and len(up) == len(peers):
        return "all"
    return ", ".join(up) or "nobody"


def _node_state(row: Mapping[str, Any]) -> str:
    if not row["up"]:
        return "[red]refuses[/]" if row.get("refuses") else "[red]down[/]"
    if not row.get("trusted", True):
        state = "resyncing" if row.get("resync") else "moved" if row.get("moved") else "new"
        return f"[yellow]{state}[/]"
    if row.get("standing", "joined") != "joined":
        return f"[yellow]{row['standing']}[/]"
    if row.get("quarantine_s", 0) > 0:
        return f"[yellow]quarantine {row['quarantine_s']:.1f} s[/]"
    return "[green]up[/]"


def _tables(report: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.markup import escape
    from rich.text import Text

    nodes = table(
        "node", "|address", "state", ">start", "sees", ">clock", ">free", ">fsync", cut=True,
        title=f"cluster {escape(report['cluster_id'])}" if report["cluster_id"] else None,
    )  # fmt: skip
    for row in report["nodes"]:
        if not row["up"]:
            nodes.add_row(row["node"] or "?", row["address"], _node_state(row), *[""] * 5)
            continue
        fsync = row.get("fsync_ms", {}).get("p50")
        nodes.add_row(
            row["node"], row["address"], _node_state(row), str(row.get("incarnation", "")), _sees(row),
            f"{row['clock_difference_s']:+.3f} s", _free(row), "" if fsync is None else f"{fsync:.1f} ms",
        )  # fmt: skip
    parts: list[Any] = [nodes]
    if report["topics"]:
        # On a narrow terminal names are cut, never numbers.
        topics = table(
            "topic", ">partitions", ">messages", "group", ">ready", ">held", ">dead", ">done", cut=True
        )
        for topic in report["topics"]:
            first = [escape(topic["topic"]), str(topic["partitions"]), f"{topic['messages']:,}"]
            for name, counts in topic["groups"].items() or [("", {})]:
                dead = counts.get("dead", 0)
                topics.add_row(
                    *first, escape(name),
                    *(f"{counts[key]:,}" if counts else "" for key in ("ready", "held")),
                    f"[red]{dead:,}[/]" if dead else ("0" if counts else ""),
                    f"{counts['done']:,}" if counts else "",
                )  # fmt: skip
                first = ["", "", ""]
        parts += [Text(), topics]
    lines = (*_keepers(report["topics"]), *_limits(report["topics"]), *move_lines(report["nodes"]))
    parts += [Text(line) for line in lines]
    parts += [Text(f"! {problem}") for problem in report["problems"]]
    return Group(*parts)


def _limits(topics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each group with a limit: its messages may wait though consumers are there."""
    return [
        f"{topic['topic']}: group {name!r} is limited to {per_second:g} deliveries a second"
        for topic in topics
        for name, per_second in topic.get("limits", {}).items()
    ]


def _keepers(topics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name, for the topics that groups have kept on disk for longest, the group that keeps the oldest message."""
    kept = [topic for topic in topics if (topic["kept_s"] or 0) >= KEPT_LONG_S]
    kept.sort(key=lambda topic: -topic["kept_s"])
    lines = [
        f"{topic['topic']}: group {topic['kept_by']!r} keeps the oldest message on disk, for "
        f"{timedelta(seconds=round(topic['kept_s']))}"
        for topic in kept[:KEEPERS_SHOWN]
    ]
    more = len(kept) - len(lines)
    return [*lines, f"{plural(more, 'more topic')} kept for over a minute: see --json"] if more else lines


def _print(report: Mapping[str, Any]) -> None:
    show: Callable[..., None] = console().print
    show(_tables(report))
