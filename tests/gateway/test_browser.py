"""The console in headless Chromium: its script and its style run under its own policy, and nothing of others does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("hypercorn")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.soak,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

SET = "document.title='taken over'"
HOSTILE = f'</pre></textarea><script>{SET}</script><img src=x onerror="{SET}">'


def call(method: str, url: str, body: Any) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def seen(url: str, where: Path, *flags: str) -> tuple[str, str]:
    """Return a page's elements after its script ran, and the browser's complaints."""
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
            f"--user-data-dir={where}", "--virtual-time-budget=3000", *flags, "--dump-dom", url,
        ],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_runs_its_own_script_and_nothing_that_a_message_brings(
    gateway_url: str, tmp_path: Path, width: int
) -> None:
    topic = f"browser-{width}"
    message = {"payload": HOSTILE, "key": HOSTILE, "headers": {"h": HOSTILE}}
    name = call("POST", f"{gateway_url}/v1/topics/{topic}/messages", message)["id"]
    call("PUT", f"{gateway_url}/v1/topics/{topic}/groups/g", {})
    query = urlencode({"topic": topic, "group": "g"})
    pages = {
        "/": "Groups", f"/group?{query}": "g of", f"/dead?{query}": "Dead letters", "/nodes": "Nodes",
        f"/message?{urlencode({'topic': topic, 'id': name})}": "Message",
        f"/publish?{urlencode({'topic': topic, 'id': name})}": "Publish",
    }  # fmt: skip
    for path, title in pages.items():
        dom, complaints = seen(
            f"{gateway_url}/console{path}", tmp_path / "profile", f"--window-size={width},900"
        )
        shown = re.search(r"<title>(.*?)</title>", dom)
        assert shown is not None, dom[:500]
        assert title in shown[1]
        assert complaints == "", f"{path}: {complaints}"
        if path == "/":
            assert re.search(r'<polyline points="[\d., ]+"', dom), "the script has drawn a line"
