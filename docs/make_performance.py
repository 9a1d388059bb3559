"""Measure, and write the table of docs/performance.md: `python docs/make_performance.py --turns 5`.

Every row is a command of `quorumq bench`. The commands run in turn, and a row shows medians. A turn takes some minutes
on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("performance.md")
COMMANDS = (
    "drain",
    "stream",
    "latency",
    "fanin",
    "fanout",
    "degraded",
    "backlog",
    "backlog --single --messages 20000",
    "sizes",
    "replicas",
)
QUICK = {"latency": ("--messages", "200"), "fanin": ("--messages", "1000")}
RATES = ("publish", "consume", "stream", "deliveries", "before", "after")
LEGS = {"publish_ms": "publish", "publish_to_delivery_ms": "delivered", "ack_ms": "ack", "whole_ms": "whole"}


def median(found: list[dict[str, Any]], *path: str) -> float | None:
    """Median of the values at a path in each result; None if no result has one."""
    values = []
    for one in found:
        value: Any = one
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            values.append(value)
    return statistics.median(values) if values else None


def row(command: str, found: list[dict[str, Any]]) -> str:
    """One line of the table, of one command's results."""
    cells = [f"{key} {median(found, key, 'messages_per_s'):,.0f}/s" for key in RATES if key in found[0]]
    one_by_one = "whole_ms" in found[0]
    for key, name in LEGS.items():
        if key in found[0] and (one_by_one or (key == "publish_ms" and "connections" in found[0])):
            cells.append(
                f"{name} p50 {median(found, key, 'p50'):.2f} ms, p99 {median(found, key, 'p99'):.2f} ms"
            )
    if "longest_pause_ms" in found[0]:
        cells.append(f"longest pause {median(found, 'longest_pause_ms'):,.0f} ms")
    if found[0].get("tenths"):
        cells.append(f"{median(found, 'node_bytes_a_message'):,.0f} bytes of each node's memory a message")
        cells.append(f"restart {median(found, 'restart_s'):.1f} s")
        for what, key in (("rate", "tenths"), ("processor", "cpu_tenths")):
            for step in found[0][key]:
                ratio = statistics.median(one[key][step][-1] / one[key][step][1] for one in found)
                cells.append(f"{step}, {what} of the last tenth ÷ second {ratio:.2f}")
    messages = found[0]["messages"]
    used = [median(found, key) for key in ("nodes_cpu_s", "clients_cpu_s")]
    cpu = " + ".join("?" if seconds is None else f"{1e6 * seconds / messages:,.0f}" for seconds in used)
    what = " ".join(
        [
            command,
            *(
                f"({name} {found[0][name]:,})"
                for name in ("size", "rf")
                if name in found[0].get("varies", ())
            ),
        ]
    )
    return f"| `{what}` | {'; '.join(cells)} | {cpu} |"


def table(results: dict[str, list[dict[str, Any]]], *, quick: bool) -> str:
    """The text between the marks of the page."""
    machine = results["drain"][0]["machine"]
    loads = [one["machine"]["load_before"] for found in results.values() for one in found]
    fsyncs = [
        one["machine"]["fsync_ms"]["p50"]
        for found in results.values()
        for one in found
        if "fsync_ms" in one["machine"]
    ]
    lines = [
        f"{machine['cores']} cores ({machine['cpu']}), Python {machine['python']}, {machine['system']}; fsync p50 "
        f"{statistics.median(fsyncs):.2f} ms; load average before a run {min(loads):.1f} to {max(loads):.1f}; "
        f"medians of {len(results['drain'])}{', with few messages (--quick)' if quick else ''}.",
        "",
        "| `quorumq bench …` | | processor, µs a message: nodes + clients |",
        "|---|---|---|",
    ]
    for command, found in results.items():
        runs = [one.get("runs", [one]) for one in found]
        for index in range(len(runs[0])):
            varies = [name for name in ("size", "rf") if len({run.get(name) for run in runs[0]}) > 1]
            lines.append(row(command, [{**one[index], "varies": varies} for one in runs]))
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--turns", type=int, default=5, help="how often each command runs")
    arguments.add_argument("--quick", action="store_true", help="with few messages, to try this script")
    given = arguments.parse_args()
    results: dict[str, list[dict[str, Any]]] = {command: [] for command in COMMANDS}
    for turn in range(given.turns):
        for command, found in results.items():
            print(f"turn {turn + 1} of {given.turns}: {command}", file=sys.stderr)
            less = QUICK.get(command, ("--messages", "5000"))
            program = [sys.executable, "-m", "quorumq", "bench", *command.split()]
            line = [*program, *(less if given.quick else ()), "--json"]
            done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
            found.append(json.loads(done.stdout))
    before, begin, rest = PAGE.read_text().partition("<!-- measured -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    PAGE.write_text(f"{before}{begin}{table(results, quick=given.quick)}\n{end}{after}")


if __name__ == "__main__":
    main()
