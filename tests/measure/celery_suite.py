"""Celery's own integration tests on quorumq: `python -m tests.measure.celery_suite DIRECTORY REDIS [ARGUMENT …]`.

DIRECTORY is Celery's source distribution, unpacked, of the version that is installed. REDIS is the program of a Redis
server, which keeps the results; the broker is three nodes. Arguments are those of pytest. Python needs celery, pytest,
pytest-timeout, redis (5.2.1: from 8 on it ends waits of the tests that are longer than 5 s), and the imports of the
chosen tests. All of test_canvas.py takes half an hour.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.measure.celery_brokers import Quorumq, Redis

PLUGINS = ("celery.contrib.pytest", "quorumq.brokers.kombu", "no:cacheprovider")
OPTIONS = ("-q", "-rfE", "--tb=short", *(word for name in PLUGINS for word in ("-p", name)))


def main(directory: str, redis: str, *arguments: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    with tempfile.TemporaryDirectory() as folder:
        backend, broker = Redis(Path(folder), redis), Quorumq(Path(folder))
        try:
            backend.start(0)
            for number in range(broker.servers):
                broker.start(number)
            backend.wait()
            broker.wait()
            variables = {
                "TEST_BROKER": ";".join(f"quorumq://{address}" for address in broker.cluster.addresses),
                "TEST_BACKEND": backend.settings["broker_url"],
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": str(backend.ports[0]),
                "PYTHONPATH": os.pathsep.join(
                    [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
                ),
            }
            command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
            return subprocess.run(command, cwd=directory, env=os.environ | variables, check=False).returncode
        finally:
            broker.close()
            backend.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
