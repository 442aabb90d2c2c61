"""A dashboard in a process of its own, and requests to it."""

import contextlib
import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from command import ONE_THREAD, command, ended_after, within

SMALL = [
    "training.steps=60",
    "training.batch=16",
    "training.log_every=5",
    "data.images=256",
    "model.channels=(4,4,4)",
    "model.hidden=16",
]


def train_two(root):
    """Train two runs in a folder: one that finished, and one that was stopped."""
    sets = [word for text in SMALL for word in ("--set", text)]
    options = (*sets, "--device", "cpu", "--run")
    for name, ending in (("ended", contextlib.nullcontext()), ("stopped", ended_after(40))):
        with ending:
            run = root / "some" / name
            done = within("train", "shapes2d-quick", *options, run, cwd=root)
        assert done.returncode == 0, done.stderr
    return root


@contextlib.contextmanager
def served(root, *options, env=None):
    """Yield the link to the dashboard over a folder without a final slash, and its process."""
    line = command("dashboard", root, "--no-open", "--port", "0", *options)
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ONE_THREAD, **(env or {})},
    )
    try:
        printed = process.stdout.readline()
        assert ": " in printed, process.stderr.read()
        yield printed.split(": ")[1].split()[0].rstrip("/"), process
    finally:
        process.kill()
        process.communicate()


def get(address, path, **parameters):
    """Return the answer to a request with these parameters."""
    query = urllib.parse.urlencode(parameters, doseq=True)
    return urllib.request.urlopen(f"{address}{path}?{query}", timeout=60)


def get_json(address, path, **parameters):
    """Return the JSON that answers a request."""
    with get(address, path, **parameters) as answer:
        return json.load(answer)


def post_target(address, run, body, **headers):
    """Return a request to move a target, not sent yet."""
    query = urllib.parse.urlencode({"run": run})
    headers = {"Content-Type": "application/json", **headers}
    return urllib.request.Request(f"{address}/target?{query}", data=body, headers=headers)


class KeepRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that returns a redirect instead of following it."""

    def redirect_request(self, *args):
        return None


def ask(request, timeout=60):
    """Return status, headers and text of an answer, whatever its status."""
    opener = urllib.request.build_opener(KeepRedirects)
    try:
        with opener.open(request, timeout=timeout) as answer:
            return answer.status, answer.headers, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode(errors="replace")


def status(request):
    """Return the status code of a request."""
    return ask(request)[0]


def events(stream):
    """Yield the server-sent events of a stream."""
    for line in stream:
        if line.startswith(b"event: "):
            yield line.split()[1].decode(), json.loads(next(stream).removeprefix(b"data: "))


def connect(address):
    """Return an open connection to a server."""
    parts = urllib.parse.urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=30)
