"""A real headless Chromium, spoken to over its DevTools pipe: what it shows, what it asks for, what it complains about.

Debian's package `chromium`; no driver and no library is needed. Messages are JSON, each ended by a NUL byte, on file
descriptors 3 (to the browser) and 4 (from it): https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions", "--mute-audio",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
LIMIT_S = 60.0


def executable() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class BrowserError(Exception):
    """The browser ended, did not answer in time, or refused a command."""


class Browser:
    """One Chromium with one page. Use as a context manager: it leaves no process behind."""

    def __init__(self, profile: Path) -> None:
        name = executable()
        if name is None:
            raise BrowserError("there is no chromium")
        to_browser, self._from_us = os.pipe()
        self._from_browser, to_us = os.pipe()
        self._log = (profile.parent / "chromium.log").open("wb")
        shell = 'exec 3<&%d 4>&%d; exec "$@"' % (to_browser, to_us)
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", name, *FLAGS, "--user-data-dir=%s" % profile, "about:blank"],
            pass_fds=(to_browser, to_us), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(to_us)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(domain + ".enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in (self._from_us, self._from_browser):
            os.close(descriptor)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._from_us, json.dumps(message).encode("ascii") + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError("%s: %s" % (method, answer["error"]))
                return answer["result"]
            self.events.append(answer)

    def _next(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            readable, _w, _x = select.select([self._from_browser], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise BrowserError("%s: no answer within %g s" % (waiting_for, LIMIT_S))
            data = os.read(self._from_browser, 1 << 20)
            if not data:
                raise BrowserError("%s: chromium ended" % waiting_for)
            self._buffer += data
        line, _nul, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def wait_for(self, event: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not any(seen.get("method") == event for seen in self.events):
            self.events.append(self._next(deadline, event))

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """Load a file afresh, in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call(
            "Emulation.setEmulatedMedia",
            media="",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError("%s: %s" % (expression, answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        answer = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def requests(self) -> list[str]:
        """Every address that the page asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Console messages, uncaught exceptions, and what the browser logged.

        The browser logs what is blocked by the policy or failed to load.
        """
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.consoleAPICalled":
                found.append(
                    "console.%s: %s" % (parameters["type"], [argument.get("value") for argument in parameters["args"]])
                )
            elif event.get("method") == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                found.append("%(level)s: %(text)s" % parameters["entry"])
        return found
