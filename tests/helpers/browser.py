"""A real browser for tests: headless Chromium, controlled over a pipe.

Tests take the fixture `tab`: a page in a browser context of its own, so that it shares no storage with
other tests. One Chromium serves all tests of a module. Where there is none, the test is skipped.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = next(
    filter(
        None,
        map(
            shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        ),
    ),
    None,
)
ANSWER_SECONDS = 120

OPTIONS = (
    "--headless",
    "--no-sandbox",  # continuous integration is root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm of a container is often 64 MB
    "--no-first-run",
    "--hide-scrollbars",
    # Names below .test are this machine, so that a page can come from another site. Nothing else resolves.
    "--host-resolver-rules=MAP *.test 127.0.0.1, MAP * ~NOTFOUND, "
    "EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-pipe",
)


class Chromium:
    """A browser process."""

    def __init__(self, answers, commands):
        self._answers, self._commands = answers, commands
        self._number, self._buffer, self._tabs = 0, bytearray(), {}

    def send(self, method, session=None, **parameters):
        """Send a command of the DevTools protocol, and return its result."""
        self._number += 1
        number = self._number
        command = {"id": number, "method": method, "params": parameters}
        command |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := json.loads(self._read_message())).get("id") != number:
            if message.get("method") == "Runtime.exceptionThrown" and (
                tab := self._tabs.get(message.get("sessionId"))
            ):
                tab.complaints.append(message["params"]["exceptionDetails"])
        assert "error" not in message, (method, message["error"])
        return message["result"]

    def _read_message(self):
        while (end := self._buffer.find(b"\0")) < 0:
            ready, _, _ = select.select([self._answers], [], [], ANSWER_SECONDS)
            assert ready, f"the browser gave no answer in {ANSWER_SECONDS} s"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        message = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return message

    @contextlib.contextmanager
    def tab(self):
        """Open an empty page in a context of its own, and close both at the end."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        tab = Tab(self, context)
        self._tabs[tab.session] = tab
        try:
            yield tab
        finally:
            del self._tabs[tab.session]
            self.send("Target.disposeBrowserContext", browserContextId=context)


class Tab:
    """A page. `complaints` holds the uncaught exceptions of its scripts."""

    def __init__(self, chromium, context):
        self._chromium, self.session, self.complaints = chromium, None, []
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        self.send("Runtime.enable")

    def send(self, method, **parameters):
        """Send a command of the DevTools protocol to this page, and return its result."""
        return self._chromium.send(method, self.session, **parameters)

    def open(self, address):
        """Start to load an address; `wait` for what it should show."""
        self.send("Page.navigate", url=address)

    def resize(self, width, height, phone=False):
        """Set the size of the page in CSS pixels; a phone lays out by the viewport meta tag."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def emulate(self, scheme="light", medium=""):
        """Choose the colour scheme, light or dark, and the medium: screen or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=medium, features=features)

    def run(self, script):
        """Return the value of an expression in the page; a promise is awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script, seconds=30):
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (
                f"{script} never came true: {self.run('document.body.innerText')}"
            )
            time.sleep(0.05)
        return value

    def press(self, key, code=0):
        """Press and release a key by its DOM name, such as "Tab" or "a", and its Windows key code."""
        event = {"key": key, "windowsVirtualKeyCode": code}
        typed = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **event, **typed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, x, y):
        """Press and release the left mouse button at a point of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path, whole=False):
        """Write a PNG of the window, or of the whole page."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def pdf(self, path, **options):
        """Print the page as a PDF."""
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", **options)["data"]))
        return path


@contextlib.contextmanager
def start_chromium(profile):
    """Start a Chromium with a profile folder of its own, and end it."""
    (theirs_in, commands), (answers, theirs_out) = os.pipe(), os.pipe()
    # Chromium reads commands from file descriptor 3 and answers on 4.
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    arguments = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["bash", "-c", script, "chromium", *arguments],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    for end in (theirs_in, theirs_out):
        os.close(end)
    try:
        yield Chromium(answers, commands)
    finally:
        process.kill()
        process.wait()
        for end in (answers, commands):
            os.close(end)


@contextlib.contextmanager
def browser(profile):
    """Start a Chromium for one page. Tests share one by the fixture `tab` instead."""
    with start_chromium(profile) as chromium, chromium.tab() as tab:
        yield tab
