"""Start `python -m quorumq.node` with a configuration, and read its log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quorumq.lab.ports import free_ports


def write_config(directory: Path, **values: object) -> Path:
    settings = {
        "node": "a",
        "cluster_id": "c",
        "secret": "0123456789abcdef",
        "data_dir": "data",
        "listen": f"127.0.0.1:{free_ports(1)[0]}",
        "log_format": "json",
        **values,
    }
    path = directory / "node.toml"
    lines = [f"{key} = {value if isinstance(value, int) else repr(value)}" for key, value in settings.items()]
    path.write_text("\n".join(lines).replace("'", '"') + "\n")
    path.chmod(0o600)
    return path


def start(path: Path, *options: str, files: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, *options, "-m", "quorumq.node", "--config", str(path)]
    if files:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"the log ended without {word}")


def address(path: Path) -> str:
    return next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("listen"))
