"""Options of the commands that can repair what they train, and restart it."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from controlvae.errors import UserError
from controlvae.lab.cli import options as cli

_PANEL = "Self-repair"
_HELP = "Take a run that goes wrong back, change what is wrong, resume it. Default: for presets."
RepairFlag = Annotated[
    bool | None,
    cli.flag("--repair/--no-repair", _HELP, show_default=False, rich_help_panel=_PANEL),
]
_UNATTENDED_HELP = "Repair, and resume training by itself if its process is killed."
Unattended = Annotated[bool, cli.flag("--unattended", _UNATTENDED_HELP, rich_help_panel=_PANEL)]
# Options of `train` that `resume` takes too: those with a value, and flags.
_WITH_VALUE = (
    *("--device", "--time-limit", "--checkpoint-every", "--logger", "--data-root", "--threads"),
)
_FLAGS = ("--tensorboard", "--repair", "--no-repair", "--unattended")


def check_choice(
    repair: bool | None, unattended: bool, devices: int | None, cluster: object
) -> None:
    """Raise UserError if the options cannot be combined.

    Args:
        repair: The choice of the user, or None.
        unattended: Restart training that is killed.
        devices: Number of processes.
        cluster: Jobs to train in, or None.
    """
    name = "--unattended" if unattended else "--repair"
    if repair is False and unattended:
        raise UserError("--unattended repairs runs; leave out --no-repair")
    if not (repair or unattended):
        return
    if cluster is not None:
        raise UserError(f"{name} is for a training in this process; jobs restart by themselves")
    if devices not in (None, 1):
        raise UserError(f"{name} and --devices cannot be combined")


def with_repair(options: Any, repair: bool | None, unattended: bool) -> Any:
    """Return options of a training with the self-repair that the user chose.

    Args:
        options: How to execute the runs.
        repair: The choice of the user. None repairs built-in models.
        unattended: Repair user-supplied models too.
    """
    from dataclasses import replace

    from controlvae.lab.training.repair.settings import Repair

    if repair is False:
        return options
    return replace(options, repair=Repair(custom=bool(repair) or unattended))


def supervises(unattended: bool, code: bool = False) -> bool:
    """Run this command in another process and restart it if it is killed, unless this is that one.

    Args:
        unattended: The choice of the user.
        code: The command trains user-supplied code, which resuming must import again.

    Returns:
        False if this process has to train.
    """
    from controlvae.lab.runs.unattended import UNATTENDED_VARIABLE, train_unattended

    if not unattended or UNATTENDED_VARIABLE in os.environ:
        return False
    words = sys.argv[1:]
    shared = [*_shared_options(words), *(["--trust-code"] if code else [])]
    status = train_unattended(
        words,
        lambda path: ["resume", path, *shared],
        lambda line: typer.echo(f"controlvae: {line}", err=True),
    )
    raise typer.Exit(status)


def _shared_options(words: Sequence[str]) -> Iterator[str]:
    """Yield the options of a command line that `resume` takes."""
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in _FLAGS:
            yield word
        elif name in _WITH_VALUE:
            yield word
            if not equals:
                yield next(rest, "")
