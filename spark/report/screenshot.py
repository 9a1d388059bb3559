"""``python -m spark.report.screenshot REPORT.html PICTURE.png``: how a report looks, for the manual.

Needs chromium on PATH (Debian: apt-get install chromium).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import click

from quorumq.core.errors import NotFound, UsageError

FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--width", default=1200, show_default=True, type=click.IntRange(200))
@click.option("--height", default=1500, show_default=True, type=click.IntRange(200))
def command(report: Path, picture: Path, width: int, height: int) -> None:
    """Write what a browser shows of REPORT into PICTURE, a PNG."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise NotFound("chromium is not on PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={width},{height}"
        target = picture.absolute()
        done = subprocess.run(
            [
                chromium,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--screenshot={target}",
                size,
                report.absolute().as_uri(),
            ],
            capture_output=True,
            text=True,
        )
    if done.returncode or not target.exists():
        raise UsageError(f"chromium ended with {done.returncode}: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    command()
