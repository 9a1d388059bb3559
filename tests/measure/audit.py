"""Cost of an audit of COUNT messages on MACHINES: `python -m tests.measure.audit COUNT DIR [MACHINES] [spark]`.

Each message has nine lines, of some 250 bytes: three nodes, two producers and three consumers write them, a file each.
Machines have clocks of their own, which differ by 1,000 s and by 10 ppm of their rates. Every tenth part of the run
has a message that is lost and one that is held twice: the audit must find these and no others.

Prints CPU seconds a line, and the peak memory of the largest process. With `spark` Spark checks the same files.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

NODES: Final = ("node:a", "node:b", "node:c")
WRITERS: Final = (*NODES, "client:p0", "client:p1", "client:c0", "client:c1", "client:c2")
PARTITIONS: Final = 4
PER_SECOND: Final = 1000
PLANTED: Final = 10
HOLD_S: Final = 30.0
DAY_MS: Final = 1_700_000_000_000
PR_SET_CHILD_SUBREAPER: Final = 36


def line(who: str, machine: int, seconds: float, kind: str, fields: str, **times: float) -> str:
    """Return a line of a writer; its own clock says all times."""
    times = {**times, "at": seconds}
    read = "".join(f',"{name}":{time_at(at, machine):.6f}' for name, at in times.items())
    wall = DAY_MS + int(1000 * seconds)
    return f'{{"run":"measured","who":"{who}","within":0,"kind":"{kind}",{fields}{read},"wall_ms":{wall}}}\n'


def settings(who: str, machine: int, seconds: float) -> str:
    said = {"boot": f"machine-{machine}", "rf": 3, "nodes": ["a", "b", "c"]}
    fields = f'"history":1,"clock":"mono","settings":{json.dumps(said)}'
    return line(who, machine, seconds, "settings", fields)


def generate(count: int, folder: Path, machines: int) -> int:
    """Write the files; return the number of lines."""
    folder.mkdir(parents=True)
    of = {who: at % machines for at, who in enumerate(WRITERS)}
    tenth = max(1, count // PLANTED)
    lost = {at * tenth + tenth // 2 for at in range(PLANTED)}
    twice = {at + 1 for at in lost}
    lines = 0
    with ExitStack() as stack:
        files = {
            who: stack.enter_context((folder / f"{who.replace(':', '-')}.jsonl").open("w", buffering=1 << 20))
            for who in WRITERS
        }
        for who, file in files.items():
            file.write(settings(who, of[who], 0))
        for number in range(count):
            for who, at, kind, fields, times in message(number, lost, twice):
                files[who].write(line(who, of[who], at, kind, fields, **times))
                lines += 1
        ends = 1 + count / PER_SECOND + 2 * HOLD_S
        for number in range(PARTITIONS):  # nothing is a dead letter
            listed = (
                f'"topic":"jobs","partition":{number},"group":"g","spans":[],"state":"dead","complete":true'
            )
            files["client:c0"].write(
                line("client:c0", of["client:c0"], ends, "list", listed, asked=ends - 0.01)
            )
        for who, file in files.items():  # so all lines before are there
            file.write(settings(who, of[who], ends + 1))
    return lines + 2 * len(WRITERS) + PARTITIONS


def time_at(seconds: float, machine: int) -> float:
    """Return what the clock of a machine says."""
    return seconds * (1 + 1e-5 * machine) + 1000.0 * machine


def message(
    number: int, lost: set[int], twice: set[int]
) -> Iterator[tuple[str, float, str, str, dict[str, float]]]:
    """Yield each line of a message: its writer, its time, its kind, other fields as JSON, and other times."""
    producer, at, seq = number % PARTITIONS, 1 + number / PER_SECOND, number // PARTITIONS
    named = f'"topic":"jobs","partition":{producer},"spans":[["a.1.5eed.{producer}",{seq},{seq + 1}]]'
    crc, who = f"{number * 2654435761 % (1 << 32):08x}", f"client:p{number % 2}"
    sent = f'"crcs":"{crc}","published_ms":{DAY_MS + int(1000 * at)}'
    yield who, at, "publish", f'{named},"op":{number},"outcome":"invoke",{sent}', {}
    for after, node in enumerate(NODES):
        yield node, at + 0.0005 + 0.0002 * after, "store", named, {}
    yield who, at + 0.0015, "publish", f'{named},"op":{number},"outcome":"ok"', {}
    if number in lost:
        return
    for attempt in range(1, 3 if number in twice else 2):
        node, got = "abc"[(number + attempt) % 3], at + 1 + 5 * (attempt - 1)
        held = f'{named},"group":"g","generation":0,"n":0,"owner":"{node}.1.b0b#{number:x}{attempt}@{node}"'
        client, until = f"client:c{(number // 3 + attempt) % 3}", {"until": got + HOLD_S}
        yield f"node:{node}", got + 0.0005, "hold_won", held, until
        token = f'"token":"{int(got * 1e6):020d}@{node}","attempt":{attempt},"crcs":"{crc}"'
        yield client, got + 0.001, "deliver", f"{held},{token}", {**until, "asked": got}
    for passed, outcome in ((0.2, "invoke"), (0.202, "acked")):
        yield client, got + passed, "ack", f'{held},"op":{number},"outcome":"{outcome}"', {}


def cost_of(*command: str, out: Path | None = None) -> tuple[float, float]:
    """Run a module of Python with arguments; return the CPU seconds of all its processes, and the MB of the largest."""
    ctypes.CDLL(None).prctl(
        PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
    )  # Java outlives its parent, and is to be counted
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (out or Path(os.devnull)).open("w") as file:
        subprocess.run([sys.executable, "-m", *command], stdout=file, check=out is None)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(used[:2]) - sum(before[:2]), used.ru_maxrss / 1024


def main(count: int, root: Path, machines: int = 1, tool: str = "quorumq") -> None:
    folder, out = root / "histories", root / "summary.json"
    lines = generate(count, folder, machines)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{lines:,} lines, {size / 1e6:,.0f} MB", flush=True)
    command = (tool, "audit", "--drained", "--json")
    more = ("--history", str(folder), "--out", str(root / "out")) if tool == "spark" else (str(folder),)
    cpu_s, most = cost_of(*command, *more, out=out)
    summary: dict[str, Any] = json.loads(out.read_text())
    broken = {row["guarantee"]: row["broken"] for row in summary["verdicts"] if row["broken"]}
    print(f"{cpu_s:.0f} CPU s, {1e6 * cpu_s / lines:.1f} µs a line, {most:,.0f} MB; {summary['conclusion']}")
    assert broken == {"G1": PLANTED, "G2": PLANTED}, broken
    assert (summary["lines"], summary["unread"]) == (lines, 0), "each line is read once"


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int((*sys.argv, "1")[3]), (*sys.argv[4:], "quorumq")[0])
