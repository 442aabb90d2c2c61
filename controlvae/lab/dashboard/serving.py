"""Serving of the dashboard by uvicorn until Ctrl-C."""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from controlvae.errors import UserError
from controlvae.lab.dashboard.access import make_access, page_address
from controlvae.lab.dashboard.connection import MAX_HEADER_BYTES, Connection
from controlvae.lab.dashboard.lazy_models import LazyModels
from controlvae.lab.dashboard.server import make_app


@dataclass(frozen=True)
class ServerOptions:
    """Where the dashboard is served, and to whom.

    Attributes:
        host: Interface to bind to.
        port: Port to bind to; 0 picks a free one.
        read_only: Refuse to move targets.
        token: Token that requests must show. None draws one if the host is not this machine.
        allowed_hosts: Further host names under which the page may be opened.
    """

    host: str = "127.0.0.1"
    port: int = 0
    read_only: bool = False
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()


def serve_dashboard(
    root: Path,
    options: ServerOptions,
    data_root: Path | None,
    device: torch.device,
    ready: Callable[[str], None],
) -> None:
    """Serve the dashboard until Ctrl-C.

    Args:
        root: Folder whose runs are shown.
        options: Where it is served, and to whom.
        data_root: Folder in which data files are searched first.
        device: Device of the models.
        ready: Called with the address once the page can be opened.

    Raises:
        UserError: The folder does not exist, the token is too short, or the port is in use.
        KeyboardInterrupt: The server was stopped by Ctrl-C.
    """
    if not root.is_dir():
        raise UserError(f"no folder {root}; train a run first: controlvae train shapes2d-quick")
    with contextlib.closing(_bind(options.host, options.port)) as listening:
        port = listening.getsockname()[1]
        access = make_access(options.host, port, options.token, options.allowed_hosts)
        models = LazyModels(data_root, device)
        app = make_app(root, models, access, lambda: server.should_exit, options.read_only)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_level="critical",
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=2,
            )
        )
        ready(page_address(options.host, port, access))
        server.run(sockets=[listening])
    if server.should_exit:  # uvicorn raises KeyboardInterrupt itself in most cases
        raise KeyboardInterrupt


def _bind(host: str, port: int) -> socket.socket:
    """Bind the socket before anything else, so that a port in use gives a one-line error."""
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(kind[0], socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(kind[4])
        listening.listen()
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}; "
            f"choose another --port, or 0 for a free one"
        ) from None
    return listening
