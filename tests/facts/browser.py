"""A page in a real headless Chromium, by the DevTools protocol over its pipe: no library is needed.

Messages are JSON that ends in a zero byte: to the browser by its file descriptor 3, from it by 4
(--remote-debugging-pipe).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe")  # fmt: skip
SECONDS = 60.0  # for one answer
Json = dict[str, Any]


@dataclass
class Browser:
    """One tab. events: all that it told since they were last taken."""

    to: int
    back: int
    session: str = ""
    number: int = 0
    read: bytes = b""
    events: list[Json] = field(default_factory=list)

    def ask(self, method: str, **words: Any) -> Json:
        self.number += 1
        message = {"id": self.number, "method": method, "params": words}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                result: Json = answer["result"]
                return result
            self.events.append(answer)

    def next(self) -> Json:
        end = time.monotonic() + SECONDS
        while b"\0" not in self.read:
            ready, _, _ = select.select([self.back], [], [], max(0, end - time.monotonic()))
            assert ready, f"the browser did not answer for {SECONDS} s"
            chunk = os.read(self.back, 1 << 20)
            assert chunk, "the browser ended"
            self.read += chunk
        first, _, self.read = self.read.partition(b"\0")
        message: Json = json.loads(first)
        return message

    def open(self, page: Path, width: int, dark: bool = False, height: int = 900) -> list[Json]:
        """Load a file; what the tab told of meanwhile: requests, console lines, exceptions, loading."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 600)  # fmt: skip
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next())
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
        return self.events

    def run(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, target: Path) -> None:
        """The whole page, however long."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def started(folder: Path) -> Iterator[Browser]:
    """A browser with its profile in `folder`; it is gone afterwards."""
    assert PROGRAM
    down, to = os.pipe()
    back, up = os.pipe()
    # Away from 3 and 4, which the browser gets.
    ends = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (down, up)]
    os.close(down)
    os.close(up)
    actions = [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
    actions += [(os.POSIX_SPAWN_OPEN, one, os.devnull, os.O_WRONLY, 0) for one in (1, 2)]
    words = [PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = os.posix_spawn(PROGRAM, words, os.environ, file_actions=actions)
    for one in ends:
        os.close(one)
    try:
        browser = Browser(to, back)
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            browser.ask(f"{domain}.enable")
        yield browser
    finally:
        os.close(to)
        os.close(back)
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
