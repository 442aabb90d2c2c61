"""The application, and the options that several commands share."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from controlvae import __version__
from controlvae.errors import shell_command

app = typer.Typer(
    name="controlvae",
    help="Train VAEs whose KL stays where you set it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with:  controlvae train shapes2d-quick   then   controlvae report runs/shapes2d-quick",
)

RunArgument = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
RunOrSeeds = Annotated[
    Path, typer.Argument(help="A run folder, or one with a run for each seed.", show_default=False)
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Where data files are; else $CONTROLVAE_DATA, else ./data."),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        help="Of training: checkpoint and stop cleanly after, e.g., 90s, 9m or 1.5h.",
    ),
]
CheckpointEvery = Annotated[
    str, typer.Option("--checkpoint-every", help="How much work a crash may cost, e.g. 30s or 5m.")
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard files beside the log.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PART.FIELD=VALUE",
        help="Change a setting, e.g. control.target=20. Repeatable.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
FidPictures = Annotated[
    int | None,
    typer.Option(
        "--fid",
        min=0,
        help="Pictures of each set for FID and KID; by default 10,000 on a GPU, none on a CPU.",
        show_default=False,
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"controlvae {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with an error; anywhere in the line.")
    ] = False,
) -> None:
    """Options of every command."""


_PASSING = ("--time-limit", "--checkpoint-every")  # how far a command went, not what it computes


def shown_command() -> str:
    """The command as a person would type it to make the same again."""
    words, kept = iter(sys.argv[1:]), []
    for word in words:
        if word in _PASSING:
            next(words, None)
        elif word.partition("=")[0] not in _PASSING:
            kept.append(word)
    return shell_command(*kept)
