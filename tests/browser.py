"""Chromium without a window, driven through a pipe: real widths, both colour schemes, and keys.

A window of `--window-size` is never narrower than 500 px, and `--force-dark-mode` leaves prefers-color-scheme alone:
so widths and schemes are emulated by the browser's own protocol.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

PIPES = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Program that has a browser read its commands at 3, and write at 4."""

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
]  # fmt: skip
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}


PALE = """
(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((value) => value / 255)
    .map((value) => value <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4)
    .reduce((sum, value, place) => sum + value * [.2126, .7152, .0722][place], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const ratio = (element, part) => {
    const both = [numbers(getComputedStyle(element, part).color), behind(element)];
    const [dark, bright] = both.map(light).sort((a, b) => a - b);
    return (bright + .05) / (dark + .05);
  };
  const seen = [...document.querySelectorAll('body *')].filter((element) => element.getClientRects().length);
  return seen.flatMap((element) => {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const lowest = Math.min(own ? ratio(element) : 21, element.placeholder ? ratio(element, '::placeholder') : 21);
    return lowest < 4.5 ? [`${element.outerHTML.slice(0, 80)} ${lowest}`] : [];
  });
})()
"""
"""Script for the elements whose text has a contrast below 4.5 with its background."""


def pipe() -> tuple[int, int]:
    """Return both ends of a pipe, above the numbers that the browser reads and writes."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high[0], high[1]


class Browser:
    """One page of a browser.

    Attributes:
        complaints: errors of scripts, refusals of the page's policy, and files that did not load, since `open`.
    """

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        reads, self._commands = pipe()
        self._events, writes = pipe()
        wrapper = [sys.executable, "-IS", "-c", PIPES, str(reads), str(writes)]
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*wrapper, *command], pass_fds=(reads, writes), stdout=log, stderr=log
            )
        os.close(reads)
        os.close(writes)
        self._session: dict[str, str] = {}
        self._bytes = b""
        self._last = 0
        self._loads = 0
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")
        attached = self.call("Target.attachToTarget", flatten=True, **target)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        os.close(self._commands)
        os.close(self._events)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of one command of the browser's protocol."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._last:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._bytes:
            ready, _, _ = select.select([self._events], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._events, 1 << 20)
            assert more, "the browser has ended"
            self._bytes += more
        line, _, self._bytes = self._bytes.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._loads += message.get("method") == "Page.loadEventFired"
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(message["params"]))
        return message

    def open(self, url: str, width: int = 1280, scheme: str = "light") -> None:
        """Load a page at a width in pixels, for a reader who likes it `light` or `dark`."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.complaints = []
        with self.loading():
            self.call("Page.navigate", url=url)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Wait until the page is loaded to which the actions within lead."""
        before = self._loads
        yield
        while self._loads == before:
            self._receive()

    def run(self, script: str) -> Any:
        """Return the value of a script's last expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def pale(self) -> list[str]:
        """Return the elements whose text has a contrast below 4.5 with its background, and the contrasts."""
        elements: list[str] = self.run(PALE)
        return elements

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key: its name in `KEYS`, or a character."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        both = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS.get(key, 0), "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **both)
        self.call("Input.dispatchKeyEvent", type="keyUp", **both)
