"""`dashboard`: where the page is, and a browser to see it in."""

import importlib.util
import webbrowser
from pathlib import Path

import typer

from controlvae.errors import UserError
from controlvae.lab.cli.device import pick_device
from controlvae.lab.data.paths import data_roots


def serve(
    runs: Path, host: str, port: int, show: bool, device: str, data_root: Path | None
) -> None:
    """Serves the page until Ctrl-C."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError("the page needs starlette and uvicorn: pip install 'controlvae[dashboard]'")
    from controlvae.lab.dashboard import server

    data_roots(data_root)
    if host not in server.LOCAL:
        typer.echo(f"controlvae: anyone who reaches {host} may look, and move set points", err=True)

    def ready(address: str) -> None:
        typer.echo(f"the runs in {runs}: {address}  (Ctrl-C ends)")
        if show:
            webbrowser.open(address)

    server.serve(runs, data_root, pick_device(device), host, port, ready)
