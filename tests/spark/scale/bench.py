"""What the jobs take, and whether they find what was planted.

Each thing that is measured is a process of its own, started as a person would start it, and watched through /proc
with all that it starts: so Java, Python's workers and what they leave behind are counted, and one job's memory is not
another's. A figure without the check that the job found every planted fault, and nothing else, would be worth
nothing, so the two come together.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from quorumq.core.values.errors import QuorumqError
from tests.spark.scale.generate import EPOCH_MS, MANIFEST, Rows

POLL_S: Final = 0.5
AS_OF: Final = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH_MS / 1000 + 8 * 86400))
"""When generated dead letters are looked at: a day after the last of them."""


class Cost(NamedTuple):
    """What a process took, with all that it started.

    Args:
        code: its exit code.
        wall_s: from start to end.
        cpu_s: user and system, but for what came after the last look at each process.
        java_mb: peak resident memory of Java.
        python_mb: peak of all Pythons together.
        output: its standard output and error.
    """

    code: int
    wall_s: float
    cpu_s: float
    java_mb: float
    python_mb: float
    output: str


def measured(command: Sequence[str], environ: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end and watch it."""
    began = time.monotonic()
    spent: dict[int, float] = {}  # of each process when it was last seen: Java is nobody's child when it ends
    peaks = {"java": 0.0, "python": 0.0}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **(environ or {})},
        )  # fmt: skip
        while process.poll() is None:
            for name, size in resident(process.pid, spent).items():
                peaks[name] = max(peaks[name], size)
            time.sleep(POLL_S)
        output.seek(0)
        said = output.read()
    return Cost(
        process.returncode,
        time.monotonic() - began,
        sum(spent.values()),
        peaks["java"],
        peaks["python"],
        said,
    )


def resident(root: int, spent: dict[int, float]) -> dict[str, float]:
    """Resident megabytes of a process and all below it, Java's apart from the others'; and into `spent` their CPU time.

    Memory that several processes share is counted once (PSS) where Linux tells.
    """
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    sizes = {"java": 0.0, "python": 0.0}
    todo = [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent[pid] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        kilobytes = next((line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")), "0")
        sizes["java" if name == "java" else "python"] += int(kilobytes) / 1024
    return sizes


def spark_command(*arguments: str, module: str = "spark") -> list[str]:
    return [sys.executable, "-m", module, *arguments]


# ---------------------------------------------------------------- what was found


def read(folder: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """A small table that a job wrote."""
    from pyarrow.dataset import dataset

    rows: list[dict[str, Any]] = (
        dataset(folder, partitioning="hive").to_table(columns=list(columns)).to_pylist()
    )
    return rows


def wrong_with_audit(manifest: Mapping[str, Any], out: Path, broken_runs: Mapping[str, object]) -> list[str]:
    """How the audit in `out` differs from the manifest.

    Args:
        manifest: what `generate histories` says.
        out: what the audit wrote.
        broken_runs: which spliced runs the simulator's checkers find broken.
    """
    expected = {
        (manifest["run"], guarantee, fault["producer_id"], fault["seq"])
        for fault in manifest["faults"]
        for guarantee in fault["guarantees"]
    }
    rows = read(out / "tables" / "violations", ["run", "guarantee", "verdict", "producer_id", "seq"])
    broken = [row for row in rows if row["verdict"] == "broken"]
    mine = {
        (row["run"], row["guarantee"], row["producer_id"], row["seq"])
        for row in broken
        if row["run"] == manifest["run"]
    }
    found = [f"not found: {it}" for it in sorted(expected - mine, key=str)]
    found += [f"found, and not planted: {it}" for it in sorted(mine - expected, key=str)]
    spliced = {row["run"] for row in broken} - {manifest["run"]}
    wanted = {run for run in broken_runs if run != manifest["run"]}
    found += [f"a broken run was not found: {run}" for run in sorted(wanted - spliced)]
    found += [f"a run was found broken that is not: {run}" for run in sorted(spliced - wanted)]
    return found


def wrong_with_letters(manifest: Mapping[str, Any], out: Path) -> list[str]:
    """How the analysis in `out` differs from the manifest of `generate deadletters`."""
    faults: dict[str, list[dict[str, Any]]] = {}
    for fault in manifest["faults"]:
        faults.setdefault(fault["fault"], []).append(fault)
    tables = out / "tables"
    failures = {
        row["failure"]: row["deaths"] for row in _summed(read(tables / "failures", ["failure", "deaths"]))
    }
    poison = read(tables / "poison", ["kind", "name"])
    bursts = {(row["topic"], row["failure"]) for row in read(tables / "bursts", ["topic", "failure"])}
    deploys = read(tables / "deploys", ["topic", "version", "regression"])
    compared = {
        "total": ({manifest["rows"]}, {sum(failures.values())}),
        "rare": (
            {it["failure"] for it in faults["rare"]},
            {name for name, deaths in failures.items() if deaths == 1},
        ),
        "deploy": (
            {(it["topic"], it["version"]) for it in faults["deploy"]},
            {(row["topic"], row["version"]) for row in deploys if row["regression"]},
        ),
        # Where a bad version begins, deaths rise at once: that is a burst as well.
        "burst": (
            {(it["topic"], it["failure"]) for it in faults["burst"]},
            bursts - {(it["topic"], it["failure"]) for it in faults["deploy"]},
        ),
    }
    for name, kind, key in (
        ("poison-key", "key", "name"),
        ("poison-payload", "payload", "name"),
        ("redrive-loop", "message", "id"),
    ):
        seen = {row["name"] for row in poison if row["kind"] == kind}
        compared[name] = ({it[key] for it in faults.get(name, [])}, seen)
    found = []
    for name, (expected, seen) in compared.items():
        found += [f"{name}: not found: {it}" for it in sorted(expected - seen, key=str)]
        found += [f"{name}: found, and not planted: {it}" for it in sorted(seen - expected, key=str)]
    return found


def _summed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    total: dict[str, int] = {}
    for row in rows:
        total[row["failure"]] = total.get(row["failure"], 0) + row["deaths"]
    return [{"failure": name, "deaths": deaths} for name, deaths in total.items()]


# ---------------------------------------------------------------------- command line


class Result(NamedTuple):
    """One row of the table: a job on an input."""

    what: str
    rows: int
    cost: Cost
    wrong: list[str]


@click.command("bench")
@click.option("--rows", "sizes", multiple=True, type=Rows(), default=("1e5", "1e6"), show_default=True,
              help="How many rows; again for more sizes.")  # fmt: skip
@click.option("--job", "jobs", multiple=True, type=click.Choice(["audit", "deadletters"]),
              default=("audit", "deadletters"), show_default=True, help="Which job; again for both.")  # fmt: skip
@click.option("--memory", default="512m", show_default=True, help="Memory of Spark's Java process.")
@click.option("--python-up-to", type=Rows(), default="1e6", show_default=True,
              help="Up to so many rows, judge histories in plain Python as well.")  # fmt: skip
@click.option("--splice", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="A history of a broken run, as for `generate`.")  # fmt: skip
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="A new directory for input and output, to be kept; else a temporary one.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(
    sizes: tuple[int, ...],
    jobs: tuple[str, ...],
    memory: str,
    python_up_to: int,
    splice: tuple[Path, ...],
    work: Path | None,
    as_json: bool,
) -> None:
    """Measure both jobs on generated input, and whether they find every planted fault.

    Beside the audit the simulator's checkers, which are plain Python, judge the same lines, where they fit in memory.
    Input takes about 250 bytes of disk a row, and Spark as much again while it works. Exits with 1 when a job
    failed, missed a fault, or found one that was not planted.
    """
    console = Console(stderr=True, highlight=False)
    folder = work or Path(tempfile.mkdtemp(prefix="quorumq-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    try:
        for rows in sizes:
            for job in jobs:
                results += one(job, rows, folder / f"{job}-{rows}", memory, python_up_to, splice, console)
    finally:
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        click.echo(
            json.dumps([{**it._asdict(), "cost": {**it.cost._asdict(), "output": ""}} for it in results])
        )
    else:
        show(Console(width=None if sys.stdout.isatty() else 120), results, memory)
    sys.exit(1 if any(it.wrong for it in results) else 0)


def one(
    job: str,
    rows: int,
    folder: Path,
    memory: str,
    python_up_to: int,
    splice: Sequence[Path],
    console: Console,
) -> list[Result]:
    """One job on one size; the input is removed when it is done with."""
    folder.mkdir(parents=True, exist_ok=True)
    source, out = folder / "in", folder / "out"
    table = "histories" if job == "audit" else "deadletters"
    extra = [it for path in splice for it in ("--splice", str(path))] if job == "audit" else []
    environ = {"QUORUMQ_SPARK_MEMORY": memory}
    console.print(f"{rows:,} rows of {table}: generating", soft_wrap=True)
    made = measured(
        spark_command(
            "generate",
            table,
            "--rows",
            str(rows),
            "--memory",
            memory,
            "--out",
            str(source),
            *extra,
            module="tests.spark.scale",
        )
    )
    if made.code:
        raise QuorumqError(
            f"`python -m tests.spark.scale generate` ended with {made.code}: {made.output.strip()[-500:]}"
        )
    manifest = json.loads((source / MANIFEST).read_text())
    results = [Result(f"generate {table}", rows, made, [])]
    broken: dict[str, object] = {}
    if job == "audit":
        for path in source.glob("spliced-*.jsonl"):
            said = measured([sys.executable, "-m", "sim", "check", str(path), "--json"])
            broken |= json.loads(said.output)["broken"]
        if rows <= python_up_to:
            console.print("  plain Python", soft_wrap=True)
            judged = measured([sys.executable, "-m", "sim", "check", str(source), "--json"])
            results.append(
                Result(
                    "sim check (plain Python)",
                    rows,
                    judged,
                    [] if judged.code == 1 else [judged.output[-500:]],
                )
            )
        arguments = ["--history", str(source), "--out", str(out)]
        check: Callable[[], list[str]] = lambda: wrong_with_audit(manifest, out, broken)  # noqa: E731
    else:
        arguments = ["--parquet", str(source / "deadletters"), "--out", str(out), "--as-of", AS_OF]
        check = lambda: wrong_with_letters(manifest, out)  # noqa: E731
    console.print(f"  {job}", soft_wrap=True)
    cost = measured(spark_command(job, *arguments), environ)
    allowed = (0, 1) if job == "audit" else (0,)
    wrong = (
        check()
        if cost.code in allowed and out.exists()
        else [f"ended with {cost.code}: {cost.output.strip()[-500:]}"]
    )
    results.append(Result(job, rows, cost, wrong))
    for it in wrong[:5]:
        console.print(f"  {it}", soft_wrap=True, markup=False)
    shutil.rmtree(source)
    return results


def show(console: Console, results: Sequence[Result], memory: str) -> None:
    """The results as a table."""
    table = Table(
        title=f"{os.cpu_count()} cores, Python {platform.python_version()}, Java with {memory}",
        title_justify="left",
    )
    for name in ("what", "rows", "rows/s", "wall", "CPU", "Java", "Python", "faults"):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    for what, rows, cost, wrong in results:
        verdict = (
            "" if what.startswith("generate") else f"{len(wrong)} wrong" if wrong else "all, and no other"
        )
        table.add_row(
            what, f"{rows:,}", f"{rows / cost.wall_s:,.0f}", f"{cost.wall_s:,.0f} s", f"{cost.cpu_s:,.0f} s",
            f"{cost.java_mb:,.0f} MB", f"{cost.python_mb:,.0f} MB", verdict,
        )  # fmt: skip
    console.print(table)
