"""One way to a Spark session in which everything of quorumq works.

Three ways lead here. `python -m spark` on a machine chooses the Java and starts it. A notebook may have a session
already. With spark-submit Java runs before Python, and the options of spark-submit stand. Spark's own log is silent
unless QUORUMQ_SPARK_LOG asks for it: failures arrive as exceptions.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pyarrow.parquet import ParquetFile
from pyspark import SparkConf, SparkContext
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from quorumq.core.values.errors import StorageError, UsageError

from .errors import MEMORY_VARIABLE
from .folders import Folder
from .java import java_home
from .source import register

LOG_VARIABLE: Final = "QUORUMQ_SPARK_LOG"
"""Names the level of Spark's log: `off` if not set, else `error`, `warn`, `info`."""

LOG_LEVELS: Final = ("off", "fatal", "error", "warn", "info", "debug", "trace")

JAVA_OPTION: Final = "-XX:-DontCompileHugeMethods -XX:ReservedCodeCacheSize=512m"
"""Java compiles methods of more than 8,000 bytes only with this option. Spark makes such of wide rows and of many
conditions, as ours are, and would interpret them for each row. The machine code of all these fills the 240 MB that Java
sets aside for it, after which it fails in odd ways."""

TASK_BYTES: Final = 16 << 20
"""Bytes of input to a task, to a piece of a shuffle, and of a file before it is written. The rows made of these bytes
fit a task's share of a small driver's memory. Spark's own defaults, made for large machines, are 64 and 128 MiB."""

JAVA_ENDS_S: Final = 10.0
"""Seconds that a Java may take to end by itself when it is not needed any more."""

CANCEL_S: Final = 3.0
"""Seconds that Spark may take to end its jobs."""

TASK_ENDS_S: Final = 0.5
"""Seconds that a task may go on after Spark has ended it: it looks between rows."""

OURS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedStages": "100",  # the data of a UI is kept even without a UI: it grows with the pieces
    "spark.ui.retainedTasks": "100",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.maxPartitionBytes": str(TASK_BYTES),
    "spark.sql.files.openCostInBytes": str(1 << 16),  # with Spark's own 4 MB, a task takes four files
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(TASK_BYTES),
    "spark.hadoop.parquet.block.size": str(TASK_BYTES),
    "spark.hadoop.parquet.dictionary.page.size": str(1 << 17),  # ids would fill 1 MB, at half a write's cost
    "spark.sql.maxConcurrentOutputFileWriters": "4",  # rows of up to four days are written unsorted
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # not the 12 bytes of INT96, which is deprecated
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "8192",  # sketches of 128 kinds are not yet too many
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # G1 takes thrice the CPU to clear away Parquet's buffers
}
"""Settings of every session, unless `conf`, or spark-submit, says otherwise."""

SMALL: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for input of less than `PIECE_BYTES`, because compiling the work takes most of its time."""


def session(
    name: str = "quorumq", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session in which ``read.format("quorumq")`` works, or the one that is there already.

    Args:
        name: name of the application.
        master: Spark's master; else that of `spark-submit`, of spark-defaults.conf, or this machine with all its cores.
        conf: further settings of Spark, which win over ours.

    Raises:
        UsageError: no Java, or an unknown level of the log.
    """
    existing = SparkSession.getActiveSession()
    if existing is not None:
        register(existing)
        return existing
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    settings = OURS | dict(conf or {})
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # else the options of spark-submit are not known
        said = SparkConf()
        settings = {key: value for key, value in OURS.items() if not said.contains(key)} | dict(conf or {})
    else:
        if is_local(master) if master else os.environ.keys().isdisjoint(("SPARK_HOME", "SPARK_CONF_DIR")):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if memory := os.environ.get(MEMORY_VARIABLE):
            settings.setdefault("spark.driver.memory", memory)
        for process, options in (("driver", f"{_log_option()} {JAVA_OPTION}"), ("executor", JAVA_OPTION)):
            key = f"spark.{process}.extraJavaOptions"
            settings[key] = f"{options} {settings.get(key, '')}".strip()
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with java_home() if SparkContext._gateway is None else nullcontext():
        made = builder.getOrCreate()
    register(made)
    return made


def is_local(master: str) -> bool:
    """Return True if a master's executors are in the driver's process."""
    return master == "local" or master.startswith("local[")


def check_shared(out: Folder, shared: bool, master: str | None) -> None:
    """Refuse an OUT on this machine's disk if executors are elsewhere, unless it is said to be shared.

    The master is None if it is not known before Spark starts.

    Raises:
        UsageError: names OUT and the master.
    """
    if master and not is_local(master) and not shared and out.session is None:
        raise UsageError(
            f"--out {out.uri} is a directory of this machine, and the executors of {master} write to their own "
            "disks: give a URI such as s3a://… or hdfs://…, or a directory on a mount that all of them have under this "
            "path, and --shared to say so"
        )


def written(
    frame: DataFrame, out: Folder, *by: str, observed: Mapping[str, Column] | None = None
) -> dict[str, Any]:
    """Write a table, and check that this machine sees the rows that executors elsewhere wrote.

    Args:
        frame: the rows.
        out: a new directory.
        by: columns by which the files are kept apart.
        observed: aggregates of the rows.

    Returns:
        the values of ``observed``; none if there are no rows.

    Raises:
        StorageError: it sees fewer.
    """
    seen = Observation()
    away = out.session is None and not is_local(frame.sparkSession.sparkContext.master)
    measures = {**(observed or {}), **({"rows": F.count(F.lit(1))} if away else {})}
    if measures:
        frame = frame.observe(seen, *(value.alias(name) for name, value in measures.items()))
    (frame.write.partitionBy(*by) if by else frame.write).parquet(out.uri)
    values = seen.get if measures else {}
    if away:
        wrote, here = values.get("rows", 0), 0
        for part in out.local.rglob("*.parquet"):
            here += ParquetFile(part).metadata.num_rows
        if wrote != here:
            raise StorageError(
                f"{out}: executors wrote {wrote:,} rows, and {here:,} are here: OUT is not on a mount that all of "
                "them share"
            )
    return values


def job_session(name: str, *, size: int | None = None, master: str | None = None) -> SparkSession:
    """Return `session` for a command. Ctrl-C ends it in Python's own way, once Java has started or when pressed twice.

    PySpark asks Java to cancel its jobs from within the signal, when an answer of Java's may be half read. That fails,
    with tracebacks on the root of Python's logs. See `interruptible`. If PySpark is interrupted while it starts Java,
    that Java runs for ever.

    Args:
        name: name of the application.
        master: the same as for `session`.
        size: bytes of input, if known before Java starts; else None.
    """
    small = size is not None and size < TASK_BYTES and "PYSPARK_GATEWAY_PORT" not in os.environ
    conf = SMALL if small else None
    if LOG_VARIABLE not in os.environ:
        logging.getLogger().addHandler(logging.NullHandler())
    if threading.current_thread() is not threading.main_thread():
        return session(name, conf=conf, master=master)
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            signal.default_int_handler(number, frame)
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        made = session(name, conf=conf, master=master)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
    return made


@contextmanager
def interruptible() -> Iterator[None]:
    """Have Ctrl-C end Spark's jobs, so that nothing is written any more after this.

    A task that is cancelled may still make its file, later than an operator would wait on a busy machine. So a Java of
    ours ends: it does when no process holds its standard input, and clears its own files away. One that spark-submit
    started is asked to cancel its jobs, and gets `CANCEL_S` and `TASK_ENDS_S`.
    """
    try:
        yield
    except KeyboardInterrupt:
        context = SparkContext._active_spark_context
        java = getattr(SparkContext._gateway, "proc", None)
        if java is not None:
            java.stdin.close()
            try:
                java.wait(JAVA_ENDS_S)
            except subprocess.TimeoutExpired:
                java.kill()
                java.wait()
        elif context is not None:
            until = time.monotonic() + CANCEL_S
            with suppress(Exception):  # Java may have ended
                context.cancelAllJobs()
                while context.statusTracker().getActiveStageIds() and time.monotonic() < until:
                    time.sleep(0.05)
                time.sleep(TASK_ENDS_S)
        raise


def exactly(path: str) -> str:
    """Return the pattern that Spark reads as this very path: without this, `a[1]` is `a1`."""
    return "".join(f"\\{char}" if char in "*?[]{}\\" else char for char in path)


def fit(spark: SparkSession, size: int) -> None:
    """Cut the work into as many pieces as ``size`` bytes of input are worth, if no setting says how many; 0: not known.

    Spark's default of 200 is made for a cluster: on a few cores, a small input would spend its time on starting tasks,
    and on planning again work that is done before it is planned.
    """
    said = spark.sparkContext.getConf()
    if not said.contains("spark.sql.shuffle.partitions"):
        tasks = (
            1 if 0 < size < TASK_BYTES else max(spark.sparkContext.defaultParallelism, -(-size // TASK_BYTES))
        )
        spark.conf.set("spark.sql.shuffle.partitions", str(tasks))


def bytes_in(*paths: Path | str) -> int | None:
    """Return the size of all files in these places of this machine; None if one is another's, or a pattern."""
    total = 0
    for path in map(Path, paths):
        if not path.exists():
            return None
        for it in path.rglob("*") if path.is_dir() else [path]:
            with suppress(OSError):  # a running node deletes some meanwhile
                total += it.stat().st_size
    return total


def _log_option() -> str:
    level = os.environ.get(LOG_VARIABLE, "off")
    if level.lower() not in LOG_LEVELS:
        raise UsageError(f"{LOG_VARIABLE}={level} is no level of a log: say one of {', '.join(LOG_LEVELS)}")
    config = Path(__file__).with_name("log4j2.properties")
    return f'"-Dlog4j2.configurationFile={config.as_uri()}" -Dquorumq.log={level.lower()}'
