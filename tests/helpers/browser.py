"""A real browser for tests: Chromium without a window, spoken to over a pipe."""

import contextlib
import json
import os
import shutil
import subprocess
import time

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Browser:
    """One page of it."""

    def __init__(self, read, write):
        self._answers, self._asks, self._number, self._session = read, write, 0, None
        self.complaints = []  # of the page's own script
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        self._ask("Runtime.enable")

    def _ask(self, method, **parameters):
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        asked |= {"sessionId": self._session} if self._session else {}
        self._asks.write(json.dumps(asked).encode() + b"\0")
        self._asks.flush()
        while True:
            said = json.loads(self._message())
            if said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(said["params"]["exceptionDetails"])
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]

    def _message(self):
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has gone"
            message += byte
        return message

    def open(self, address):
        self._ask("Page.navigate", url=address)

    def resize(self, width, height):
        """Set the size of the page, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def run(self, script):
        """The value of an expression in the page."""
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script, seconds=30):
        """Until an expression is true."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (
                f"{script} never came true: {self.run('document.body.innerText')}"
            )
            time.sleep(0.05)
        return value


@contextlib.contextmanager
def browser(profile):
    """A browser with a profile folder of its own."""
    (theirs_in, asks), (answers, theirs_out) = os.pipe(), os.pipe()
    options = "--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe"
    line = f"exec {CHROMIUM} {options} --user-data-dir={profile} 3<&{theirs_in} 4>&{theirs_out}"
    process = subprocess.Popen(
        ["bash", "-c", line], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
    )
    for end in (theirs_in, theirs_out):
        os.close(end)
    try:
        with os.fdopen(asks, "wb") as write, os.fdopen(answers, "rb") as read:
            yield Browser(read, write)
    finally:
        process.kill()
        process.wait()
