"""The dashboard served in a thread of this process, which saves the imports of another one."""

import contextlib
import queue
import threading
import urllib.parse
from unittest import mock

import torch
import uvicorn

from controlvae.lab.dashboard.serving import ServerOptions, serve_dashboard


@contextlib.contextmanager
def served_page(root, **options):
    """Serve the dashboard over a folder, and yield its address, with the token if there is one."""
    servers, ready, run = queue.Queue(), queue.Queue(), uvicorn.Server.run

    def keep(server, **sockets):
        servers.put(server)
        run(server, **sockets)

    def serve():
        with contextlib.suppress(KeyboardInterrupt):
            serve_dashboard(root, ServerOptions(**options), None, torch.device("cpu"), ready.put)

    thread = threading.Thread(target=serve, daemon=True)
    with mock.patch.object(uvicorn.Server, "run", keep):
        thread.start()
        address, server = ready.get(timeout=30), servers.get(timeout=30)
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(30)


def view_of(address, *runs, **more):
    """Return the address of a view of these runs, such as `view_of(page, "a", smooth=0.5)`."""
    pairs = [*(("run", run) for run in runs), *more.items()]
    return f"{address}#{urllib.parse.urlencode(pairs)}"
