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


def dead_letter(url: str, topic: str) -> str:
    """Make a dead letter of group `g` with hostile texts, and return its id."""
    groups = f"{url}/v1/topics/{topic}/groups"
    message = {"payload": HOSTILE, "key": HOSTILE, "headers": {"h": HOSTILE}}
    name: str = call("POST", f"{url}/v1/topics/{topic}/messages", message)["id"]
    call("PUT", f"{groups}/g", {})
    (fetched,) = call("POST", f"{groups}/g/fetch", {"max_wait": 20})["messages"]
    death = {"receipts": [fetched["receipt"]], "reason": HOSTILE}
    call("POST", f"{url}/v1/receipts/dead-letter", death)
    return name


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_a_page_is_legible_and_runs_its_own_script_alone(
    gateway_url: str, browser: Browser, width: int, scheme: str
) -> None:
    topic = f"browser-{width}-{scheme}"
    name = dead_letter(gateway_url, topic)
    query = urlencode({"topic": topic, "group": "g"})
    pages = {
        "/": "Groups", f"/group?{query}&which=dead": "g of", f"/dead?{query}": "Dead letters", "/nodes": "Nodes",
        f"/message?{urlencode({'topic': topic, 'id': name})}": "Message", f"/rewind?{query}": "Rewind",
        f"/publish?{urlencode({'topic': topic, 'id': name})}": "Publish",
    }  # fmt: skip
    for path, title in pages.items():
        browser.open(f"{gateway_url}/console{path}", width, scheme)
        assert browser.complaints == [], path
        assert title in browser.run("document.title")
        assert browser.run("document.documentElement.scrollWidth") <= width, path
        assert browser.pale() == [], path
        if path == "/":
            points = browser.run("document.querySelector('polyline').getAttribute('points')")
            assert re.fullmatch(r"[\d., ]+", points), "the script has drawn a line"


def test_each_action_is_reached_by_keys_with_its_focus_in_sight(gateway_url: str, browser: Browser) -> None:
    topic = "keys"
    dead_letter(gateway_url, topic)
    query = urlencode({"topic": topic, "group": "g"})

    def tab_to(text: str) -> None:
        for _ in range(60):
            browser.press("Tab")
            if browser.run("document.activeElement.textContent").startswith(text):
                style = browser.run("getComputedStyle(document.activeElement).outlineStyle")
                assert style == "solid", "the focus is in sight"
                return
        raise AssertionError(f"Tab never comes to {text!r}")

    def enter() -> str:
        with browser.loading():
            browser.press("Enter")
        text: str = browser.run("document.getElementById('main').innerText")
        return text

    browser.open(f"{gateway_url}/console/group?{query}")
    tab_to("Pause deliveries")
    assert "The group is paused." in enter()
    tab_to("Resume deliveries")
    assert "The group goes on." in enter()
    tab_to("Count first")
    assert "Rewind g of keys to earliest?" in enter()
    assert browser.run("document.activeElement.textContent") == "No", "an Enter too many changes nothing"
    browser.open(f"{gateway_url}/console/dead?{query}")
    tab_to("Drop all 1 for good")
    assert "for good?" in enter()
    browser.press("Tab", shift=True)
    assert browser.run("document.activeElement.textContent") == "Drop 1 for good"
    assert "1 dead letter dropped." in enter()
