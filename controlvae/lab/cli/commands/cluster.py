"""Commands `status` and `cancel`: runs and their jobs."""

from pathlib import Path
from typing import Annotated

import typer

from controlvae.lab.cli import options as cli

_Runs = Annotated[Path, cli.argument("Run folder, or folder of runs.")]


@cli.command("status", cli.TRAIN)
def _status(runs: _Runs = Path("runs")) -> None:
    """Show which runs are queued, running, finished or failed, with speed and time left."""
    from controlvae.lab.cli.format import print_columns
    from controlvae.lab.cluster.status import describe_states

    headings, rows, summary = describe_states(runs)
    print_columns(headings, rows)
    typer.echo("\n".join(summary))


@cli.command("cancel", cli.TRAIN)
def _cancel(runs: cli.RunsArgument) -> None:
    """Cancel queued and running jobs. Training saves, and the command that submitted resumes."""
    from controlvae.lab.cluster.status import cancel

    typer.echo("\n".join(cancel(runs)))
