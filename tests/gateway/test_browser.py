"""The console in headless Chromium: its script and its style run under its own policy, and nothing of others does."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.browser import Browser

pytest.importorskip("hypercorn")

pytestmark = pytest.mark.e2e

SET = "document.title='taken over'"
HOSTILE = f'</pre></textarea><script>{SET}</script><img src=x onerror="{SET}">'


def call(method: str, url: str, body: Any) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_runs_its_own_script_and_nothing_that_a_message_brings(
    gateway_url: str, browser: Browser, width: int
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
        browser.open(f"{gateway_url}/console{path}", width)
        assert browser.complaints == [], path
        assert title in browser.run("document.title")
        assert browser.run("document.documentElement.scrollWidth") <= width, path
        if path == "/":
            points = browser.run("document.querySelector('polyline').getAttribute('points')")
            assert re.fullmatch(r"[\d., ]+", points), "the script has drawn a line"
