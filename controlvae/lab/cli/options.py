"""Typer application, and options that several commands share."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from controlvae import __version__
from controlvae.errors import UserError, shell_command

# Groups of commands in `--help`.
TRAIN, CHOOSE = "Train", "Choose a target, a law, a setting"
PAPER, LOOK = "The paper", "Look at runs"


def _hide_flag_values(params: list[Any]) -> list[Any]:
    """Let the help show flags without the `<bool>` of typer."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_values(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_values(super().get_params(ctx))


app = typer.Typer(
    cls=_Group,
    name="controlvae",
    help="Train VAEs whose KL stays where you set it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with:  controlvae train shapes2d-quick   "
    "then   controlvae report runs/shapes2d-quick",
)


def command(name: str, panel: str, **settings: Any) -> Any:
    """Return a decorator that registers a command in a group of the help."""
    return app.command(name, cls=_Command, rich_help_panel=panel, **settings)


def argument(help: str, **more: Any) -> Any:
    """Return a positional argument."""
    return typer.Argument(help=help, **{"show_default": False, **more})


def option(help: str, min: float | None = None, **more: Any) -> Any:
    """Return an option with a value of at least `min`, named `name` or after its parameter."""
    names = [more.pop("name")] if "name" in more else []
    return typer.Option(*names, help=help, min=min, **more)


def flag(names: str, help: str, **more: Any) -> Any:
    """Return an option without a value."""
    return typer.Option(names, help=help, **more)


Preset = Annotated[str, argument("Name from `controlvae presets`, or FILE.py:NAME.")]
RunArgument = Annotated[Path, argument("Run folder.")]
RunsArgument = Annotated[Path, argument("Run folder, or folder of runs.")]
DataRoot = Annotated[Path | None, option("Data folder. Default: $CONTROLVAE_DATA, then ./data.")]
_LIMIT_HELP = "Stop training after this long (e.g. 90s, 9m, 1.5h) and save a checkpoint."
TimeLimit = Annotated[str | None, option(_LIMIT_HELP)]
CheckpointEvery = Annotated[str, option("Time between checkpoints, e.g. 30s or 5m.")]
TensorBoard = Annotated[bool, flag("--tensorboard", "The same as --logger tensorboard.")]
_LOGGER_HELP = "Log also to tensorboard, wandb, mlflow or csv. Repeatable."
Loggers = Annotated[list[str] | None, option(_LOGGER_HELP, name="--logger", metavar="NAME")]
_FORMAT_HELP = "torch, onnx or hub. Repeatable. Default: torch and hub."
Formats = Annotated[list[str] | None, option(_FORMAT_HELP, name="--format", metavar="NAME")]
_SET_HELP = "Change a setting, e.g. control.target=20. Repeatable."
Sets = Annotated[list[str] | None, option(_SET_HELP, name="--set", metavar="PART.FIELD=VALUE")]
Seeds = Annotated[int, option("Number of seeds, each in its own folder.", 1)]
Device = Annotated[str, option("auto, cpu, cuda or cuda:1.")]
_DEVICES_HELP = "Processes that train each model together, one per GPU. Default: 1."
Devices = Annotated[int | None, option(_DEVICES_HELP, 1, metavar="N", show_default=False)]
Threads = Annotated[str, option("CPU threads. auto: fastest, or as before.", metavar="N|auto")]
Examples = Annotated[int, option("Number of examples to measure.", 2)]
_FID_HELP = "Images for FID and KID. Default: 10,000 on a GPU, none on a CPU."
Fid = Annotated[int | None, option(_FID_HELP, 0, show_default=False)]
Factors = Annotated[str | None, option("Table of factors.", metavar="FILE[:A,B]")]
Thorough = Annotated[
    bool, flag("--thorough", "Measure as many examples on a CPU as on a GPU. Takes minutes.")
]
_METRICS_HELP = "Metrics to measure, by their names in metrics.json, or all. Default: all that need no package, no weights and no minutes."
Metrics = Annotated[str | None, option(_METRICS_HELP, metavar="A,B", show_default=False)]
_WEIGHTS_HELP = "dinov2=FILE or mauve=FOLDER, for the metrics that need them. Repeatable."
Weights = Annotated[list[str] | None, option(_WEIGHTS_HELP, metavar="NAME=PATH")]
REPLAY_HELP = "Replay the weight of a run open-loop. Of several seeds, their mean."
_OUT_HELP = "File to write. Default: in the run's figures, or the terminal."
Rate = Annotated[float | None, option("Rate in nats, of a run made by `controlvae curve`.")]
Out = Annotated[Path | None, option(_OUT_HELP)]


def ask(question: str, choices: Mapping[str, str]) -> str:
    """Ask for one of some choices in a terminal; without a terminal, return the first one.

    Args:
        question: The question.
        choices: What each choice means, by its name.
    """
    names = list(choices)
    if not sys.stdin.isatty():
        return names[0]
    for number, (name, meaning) in enumerate(choices.items(), start=1):
        typer.echo(f"  {number}  {name:15s} {meaning}", err=True)
    answer = typer.prompt(question, default=names[0], err=True).strip()
    return names[int(answer) - 1] if answer in map(str, range(1, len(names) + 1)) else answer


def parse_weights(pairs: list[str] | None) -> dict[str, str]:
    """Return the values of `--weights` by name."""
    found = {}
    for pair in pairs or ():
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise UserError(f"--weights takes NAME=PATH, such as dinov2=FILE, got {pair!r}")
        found[name] = path
    return found


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"controlvae {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, flag("--version", "Print the version.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Annotated[bool, flag("--debug", "Show the traceback of an error. Any place.")] = False,
    trust_code: Annotated[
        bool, flag("--trust-code", "Execute the code that a run folder names. Any place.")
    ] = False,
) -> None:
    """Options of every command."""


_LIMITS = ("--time-limit", "--checkpoint-every")  # they affect how far a command gets, not results


def recorded_command() -> str:
    """Return the command line that repeats this command, for `experiment.json`."""
    words, recorded = iter(sys.argv[1:]), []
    for word in words:
        if word in _LIMITS:
            next(words, None)
        elif word.partition("=")[0] not in _LIMITS:
            recorded.append(word)
    return shell_command(*recorded)


def launch_ranks(devices: int | None) -> bool:
    """Run this command on several processes, unless this is one of them. Return True if it ran."""
    if devices is None:
        return False
    from controlvae.lab.ranks.launch import launch_command, should_launch

    if not should_launch(devices):
        return False
    launch_command(sys.argv[1:], devices)
    return True
