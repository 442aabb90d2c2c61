"""Command `dashboard`: a web page to watch runs."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from controlvae.lab.cli import options as cli

_HOST_HELP = "Interface to bind. Anything but 127.0.0.1 exposes the dashboard to the network."


@cli.command("dashboard", cli.LOOK)
def _dashboard(
    runs: Annotated[Path, cli.argument("Folder of the runs to show.")] = Path("runs"),
    host: Annotated[str, cli.option(_HOST_HELP)] = "127.0.0.1",
    port: Annotated[int, cli.option("Port. 0 takes a free one.", 0, max=65_535)] = 8_000,
    show: Annotated[bool, cli.flag("--open/--no-open", "Open the page in a browser.")] = True,
    read_only: Annotated[bool, cli.flag("--read-only", "Move no targets.")] = False,
    device: Annotated[str, cli.option("Device that makes images.")] = "cpu",
    data_root: cli.DataRoot = None,
) -> None:
    """Serve a page with live curves, latents to move, and the set points of runs. Ctrl-C ends.

    From another machine: ssh -L 8000:localhost:8000 MACHINE, then open the same address here.
    """
    from controlvae.lab.dashboard import require_packages

    require_packages()
    from controlvae.lab.dashboard import server
    from controlvae.lab.data.paths import data_roots
    from controlvae.lab.engines.device import pick_device

    data_roots(data_root)
    if host not in server.LOCAL:
        typer.echo(f"controlvae: anyone who reaches {host} can see runs and move targets", err=True)

    def announce(address: str) -> None:
        typer.echo(f"the runs in {runs}: {address}  (Ctrl-C ends)")
        if show:
            webbrowser.open(address)

    server.serve_dashboard(runs, data_root, pick_device(device), host, port, announce, read_only)
