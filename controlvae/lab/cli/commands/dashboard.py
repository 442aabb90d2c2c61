"""Command `dashboard`: a web page to watch runs."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from controlvae.lab.cli import options as cli

_HOST_HELP = "Interface to bind. Anything but 127.0.0.1 opens it to the network, with a token."
_TOKEN_HELP = "Custom token. Without it, a random one beyond 127.0.0.1. The variable is safer."
_NAME_HELP = "Further host name of this machine in addresses of the page. Repeatable."


@cli.command("dashboard", cli.LOOK)
def _dashboard(
    runs: Annotated[Path, cli.argument("Folder of the runs to show.")] = Path("runs"),
    host: Annotated[str, cli.option(_HOST_HELP)] = "127.0.0.1",
    port: Annotated[int, cli.option("Port. 0 takes a free one.", 0, max=65_535)] = 8_000,
    show: Annotated[bool, cli.flag("--open/--no-open", "Open the page in a browser.")] = True,
    read_only: Annotated[bool, cli.flag("--read-only", "Show runs, but move no targets.")] = False,
    token: Annotated[
        str | None, cli.option(_TOKEN_HELP, envvar="CONTROLVAE_DASHBOARD_TOKEN")
    ] = None,
    allow_host: Annotated[list[str] | None, cli.option(_NAME_HELP, metavar="NAME")] = None,
    device: Annotated[str, cli.option("Device that makes images.")] = "cpu",
    data_root: cli.DataRoot = None,
) -> None:
    """Serve a page with live curves, latents to move, and the set points of runs. Ctrl-C ends.

    From another machine: ssh -L 8000:localhost:8000 MACHINE, then open the same address here.
    """
    from controlvae.lab.dashboard import require_packages

    require_packages()
    from controlvae.lab.dashboard.access import LOCAL
    from controlvae.lab.dashboard.serving import ServerOptions, serve_dashboard
    from controlvae.lab.data.paths import data_roots
    from controlvae.lab.engines.device import pick_device

    data_roots(data_root)

    def announce(address: str) -> None:
        typer.echo(f"the runs in {runs}: {address}  (Ctrl-C ends)")
        if host not in LOCAL:
            typer.echo(
                "controlvae: the connection is not encrypted; the link gives access", err=True
            )
        if show:
            webbrowser.open(address)

    options = ServerOptions(host, port, read_only, token, tuple(allow_host or ()))
    serve_dashboard(runs, options, data_root, pick_device(device), announce)
