"""A Celery application of five kinds of tasks, for `tests.measure.celery_kills`: on any broker, with any pool.

Environment: CELERY_KILLS is a JSON object with ``settings`` of Celery, and ``done``, the path of a file to which each
task that is done adds a line: kind, number, and the time in seconds since 1970.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final

from celery import Celery

import quorumq.brokers.kombu  # noqa: F401  makes quorumq:// known

VARIABLE: Final = "CELERY_KILLS"
FAILURES: Final = 2
"""Tries of a webhook that fail before one succeeds."""

GIVEN: Final[dict[str, Any]] = json.loads(os.environ[VARIABLE])
COMMON: Final[dict[str, Any]] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_ignore_result": True,
    "worker_prefetch_multiplier": 1,
    "worker_hijack_root_logger": False,
    "broker_connection_max_retries": None,
    "broker_connection_retry_on_startup": True,
    "task_publish_retry_policy": {"max_retries": 20, "interval_max": 1.0},
}
"""Settings with every broker: tasks are acked when they are done, and a publish is retried for some 18 s."""

app = Celery("kills")
app.conf.update(COMMON | GIVEN["settings"])


def done(kind: str, number: int) -> None:
    """Add the line of a task in one write, so that no line is cut if the process is killed."""
    file = os.open(GIVEN["done"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{kind} {number} {time.time()}\n".encode())
    finally:
        os.close(file)


@app.task
def mail(number: int) -> None:
    """Take 20 ms."""
    time.sleep(0.02)
    done("mail", number)


@app.task
def thumbnail(number: int) -> None:
    """Take 0.2 s."""
    time.sleep(0.2)
    done("thumbnail", number)


@app.task
def invoice(number: int) -> None:
    """Take 1.5 s."""
    time.sleep(1.5)
    done("invoice", number)


@app.task
def report(number: int) -> None:
    """Take 12 s, more than twice the hold of `celery_brokers.Quorumq`."""
    time.sleep(12.0)
    done("report", number)


@app.task(bind=True, max_retries=None)
def webhook(self: Any, number: int) -> None:
    """Fail twice, and try again after 1 and 2 s."""
    if self.request.retries < FAILURES:
        raise self.retry(countdown=2**self.request.retries)
    done("webhook", number)
