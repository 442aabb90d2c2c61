"""`controlvae`: every command, its options, and how errors become one line and an exit status."""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from controlvae import __version__
from controlvae.errors import RunError, UserError, typed

app = typer.Typer(
    name="controlvae",
    help="Train VAEs whose KL stays where you set it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with:  controlvae train shapes2d-quick   then   controlvae report runs/shapes2d-quick",
)

RunArgument = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Where data files are; else $CONTROLVAE_DATA, else ./data.")
]
TimeLimit = Annotated[
    str | None, typer.Option("--time-limit", help="Checkpoint and stop cleanly after, e.g., 90s, 9m or 1.5h.")
]
CheckpointEvery = Annotated[
    str, typer.Option("--checkpoint-every", help="How much work a crash may cost, e.g. 30s or 5m.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files beside the log.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PART.FIELD=VALUE", help="Change a setting, e.g. control.target=20. Repeatable."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]
FidPictures = Annotated[
    int | None,
    typer.Option(
        "--fid", min=0, help="Pictures of each set for FID and KID; by default 10,000 on a GPU, none on a CPU.",
        show_default=False,
    ),
]  # fmt: skip


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"controlvae {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with an error; anywhere in the line.")
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def presets() -> None:
    """What can be run, and the table or figure of the paper it belongs to."""
    from rich.table import Table

    from controlvae.cli.bars import wide_console
    from controlvae.experiments import PRESETS

    table = Table(box=None, pad_edge=False)
    for head in ("preset", "what", "steps", "paper"):
        table.add_column(head, justify="right" if head == "steps" else "left", no_wrap=head == "preset")
    for experiment in PRESETS.values():
        table.add_row(experiment.name, experiment.about, f"{experiment.training.steps:,}", experiment.paper)
    wide_console(160).print(table)


@app.command()
def train(
    preset: Annotated[str, typer.Argument(help="A name from `controlvae presets`.", show_default=False)],
    sets: Sets = None,
    run: Annotated[Path | None, typer.Option("--run", help="The run folder; by default runs/PRESET.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Train so many seeds, each in a folder of its own.")] = 1,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="RUN", help="Open loop: play back the weight a run, or several, recorded."),
    ] = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    tensorboard: TensorBoard = False,
    data_root: DataRoot = None,
) -> None:
    """Train a preset, with a live view of KL against its target."""
    from controlvae.cli import training

    how = training.options(device, time_limit, checkpoint_every, tensorboard, data_root)
    training.start(training.plan(preset, sets or [], run, seeds, replay), how, shown_command())


@app.command()
def resume(
    run: RunArgument,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    tensorboard: TensorBoard = False,
    data_root: DataRoot = None,
) -> None:
    """Go on from the last good checkpoint as if never stopped."""
    from controlvae.cli import training
    from controlvae.experiments import find_runs

    training.resume(find_runs(run), training.options(device, time_limit, checkpoint_every, tensorboard, data_root))


@app.command()
def steer(
    run: RunArgument,
    target: Annotated[float, typer.Argument(help="The new set point, in nats per example.", show_default=False)],
) -> None:
    """Move the set point of a run in training, without a jump in β; a run that is stopped takes it up when resumed."""
    from controlvae.experiments import find_runs
    from controlvae.experiments.asked import ask_target

    for folder in find_runs(run):
        ask_target(folder, target)
        typer.echo(f"asked of {folder.path}: {target:g} nats")


@app.command()
def evaluate(
    run: RunArgument,
    examples: Annotated[int, typer.Option("--examples", min=2, help="How many examples to measure on.")] = 10_000,
    fid: FidPictures = None,
    iwae: Annotated[
        int, typer.Option("--iwae", min=0, help="Importance samples per example for the tighter bound; 0: without.")
    ] = 50,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Every metric that applies, into metrics.json; on the test part of the data where there is one."""
    from controlvae.cli import runs
    from controlvae.experiments import find_runs

    for folder in find_runs(run):
        metrics = runs.evaluate(runs.open_at(folder.path, device, data_root), examples, fid, iwae)
        runs.show_metrics(str(folder.path), metrics)
        typer.echo(f"written to {folder.metrics_file}")


@app.command()
def score(
    codes: Annotated[list[Path], typer.Argument(help="Files that numpy.savez wrote.", show_default=False)],
    device: Device = "auto",
) -> None:
    """Every disentanglement score of codes that any model gave, into NAME.scores.json beside NAME.npz.

    A file holds `means`, (examples, latents), `log_variances` where there are
    any, and `factors`, (examples, factors), as whole numbers, with
    `factor_names`; those named in `unordered` are no quantities. Codes of all
    737,280 pictures of 2D Shapes, in their order, need no factors.
    `reconstruction` is one number in nats. A CPU takes 20,000 examples, a GPU
    all. `reproduce --beside` sets the scores in a table.
    """
    from controlvae.cli.bars import simple_bar
    from controlvae.cli.runs import pick_device, show_metrics
    from controlvae.report.codes import score_codes

    for path in codes:
        with simple_bar(f"scoring {path}") as progress:
            file, metrics = score_codes(path, pick_device(device), progress)
        show_metrics(str(path), metrics)
        typer.echo(f"written to {file.path}")


@app.command()
def traverse(
    run: RunArgument,
    image: Annotated[
        str | None, typer.Option("--image", help="Start from the picture of this index, or a square, ellipse or heart.")
    ] = None,
    reach: Annotated[
        float, typer.Option("--range", min=0.1, max=100.0, help="Each latent runs from -RANGE to RANGE.")
    ] = 3.0,
    columns: Annotated[int, typer.Option("--columns", min=2, max=40, help="Pictures in a row.")] = 10,
    rows: Annotated[int, typer.Option("--rows", min=1, help="At most so many latents, those of largest KL.")] = 20,
    animate: Annotated[bool, typer.Option("--animate", help="Write a GIF of each, too.")] = False,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """A picture of what each latent does, rows ordered by KL: from one image and, of all shapes, the paper's three."""
    from controlvae.cli.runs import open_at
    from controlvae.report import animation, save_figure, traversal, traversals

    opened = open_at(run, device, data_root)
    for start in traversal.seed_images(opened) if image is None else [image]:
        path = opened.folder.figures / (f"traversal-{start}.png" if start else "traversal.png")
        typer.echo(save_figure(traversals(opened, image=start, reach=reach, columns=columns, rows=rows), path))
        if animate:
            typer.echo(animation.animate(opened, path.with_suffix(".gif"), image=start, reach=reach))


@app.command()
def reconstruct(
    run: RunArgument,
    columns: Annotated[int, typer.Option("--columns", min=1, max=40, help="How many pictures, or sentences.")] = 12,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """A picture of data above and reconstructions below; or sentences and what their codes are read back as."""
    from controlvae.cli.runs import open_at
    from controlvae.data.text import Sentences
    from controlvae.report import reconstructions, save_figure
    from controlvae.report.text import read_back

    opened = open_at(run, device, data_root)
    if isinstance(opened.examples, Sentences):
        typer.echo("\n\n".join(f"data  {pair.sentence}\ncode  {pair.read_back}" for pair in read_back(opened, columns)))
        return
    typer.echo(save_figure(reconstructions(opened, columns), opened.folder.figures / "reconstruction.png"))


@app.command()
def sample(
    run: RunArgument,
    count: Annotated[int, typer.Option("--count", min=1, help="How many.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
    columns: Annotated[int | None, typer.Option("--columns", min=1, help="Pictures in a row.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of sentences: 0 takes the likeliest word.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Of sentences: draw from so many likeliest words.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of sentences: from the likeliest with this share.")] = None,
    beam: Annotated[int | None, typer.Option(help="Of sentences: search with so many candidates.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write.")] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """From the prior, N(0, I): a grid of pictures, or sentences."""
    from controlvae.cli.runs import open_at
    from controlvae.data.text import Sentences
    from controlvae.experiments.files import write_text
    from controlvae.report import samples, save_pixels
    from controlvae.report.text import write

    opened = open_at(run, device, data_root)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "beam": beam}
    how = {name: value for name, value in given.items() if value is not None}
    if isinstance(opened.examples, Sentences):
        if columns is not None:
            raise UserError(f"--columns is for pictures; {run} is a model of sentences, one a line")
        lines = "\n".join(write(opened, count, seed=seed, **how))
        if out is None:
            typer.echo(lines)
        else:
            write_text(out, lines + "\n")
            typer.echo(out)
        return
    if how:
        raise UserError(f"--{next(iter(how)).replace('_', '-')} is for sentences; {run} is a model of pictures")
    pixels = samples(opened, count, seed=seed, columns=columns)
    typer.echo(save_pixels(pixels, out or opened.folder.figures / "samples.png"))


@app.command()
def chat(
    run: RunArgument,
    count: Annotated[int, typer.Option("--count", min=1, max=100, help="Responses to each line.")] = 5,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="Of the words; 0 takes the likeliest, as the paper does.")
    ] = 0.0,
    topic: Annotated[str, typer.Option("--topic", help="What it is about, of the topics it was trained on.")] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the codes.")] = 0,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Type a line, get several responses, each from a code of the prior; lines may come from a pipe. Ctrl-D ends."""
    from controlvae.cli import chatting
    from controlvae.cli.runs import open_at

    chatting.chat(open_at(run, device, data_root), count, temperature, topic, seed)


@app.command()
def interpolate(
    run: RunArgument,
    start: Annotated[
        str | None, typer.Option("--from", help="Index of an example, or a sentence; a random example by default.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Another.")] = None,
    columns: Annotated[int, typer.Option("--columns", min=2, max=40, help="Pictures, or sentences, on the way.")] = 10,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Pictures, or sentences, on the way from one example to another."""
    from controlvae.cli.runs import name_unknown, open_at
    from controlvae.data.text import Sentences
    from controlvae.report import interpolation, save_figure
    from controlvae.report.samples import endpoints
    from controlvae.report.text import between, two_sentences

    opened = open_at(run, device, data_root)
    if isinstance(opened.examples, Sentences):
        rows, unknown = two_sentences(opened, start, end)
        name_unknown(unknown)
        ends, lines = [opened.examples.words(row) for row in rows], between(opened, rows, columns)
        typer.echo("\n".join([f"from  {ends[0]}", *(f"      {line}" for line in lines), f"to    {ends[1]}"]))
        return
    first, last = endpoints(opened, _index("--from", start), _index("--to", end))
    path = opened.folder.figures / f"interpolation-{first}-{last}.png"
    typer.echo(save_figure(interpolation(opened, first, last, columns), path))


def _index(option: str, given: str | None) -> int | None:
    """The index of a picture."""
    try:
        return None if given is None else int(given)
    except ValueError:
        raise UserError(f"{option} takes the index of a picture, got {given!r}") from None


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file to write.")] = None,
    examples: Annotated[int, typer.Option("--examples", min=2, help="How many examples to measure on.")] = 10_000,
    fid: FidPictures = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """One HTML file: curves, pictures, numbers, and the command that makes them again."""
    from controlvae.cli.runs import evaluate_run, pick_device
    from controlvae.experiments import find_runs
    from controlvae.report import write_report
    from controlvae.training.checkpoint import latest_step

    folders = list(dict.fromkeys(folder for path in runs for folder in find_runs(path)))
    for folder in folders:
        if latest_step(folder.checkpoints) is not None:
            evaluate_run(folder.path, pick_device(device), data_root, examples, fid)
    if out is None:
        common = Path(os.path.commonpath([path.resolve() for path in runs]))
        here = Path.cwd()
        home = here if common in here.parents else common  # not above where the user is
        out = folders[0].report_file if len(folders) == 1 else Path(os.path.relpath(home)) / "report.html"
    typer.echo(write_report(folders, out))


@app.command()
def dashboard(
    runs: Annotated[Path, typer.Argument(help="The folder whose runs to show.")] = Path("runs"),
    host: Annotated[str, typer.Option("--host", help="Others than 127.0.0.1 let others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0 takes one that is free.")] = 8_000,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Whether to open it in a browser.")] = True,
    device: Annotated[str, typer.Option("--device", help="Where its pictures are made.")] = "cpu",
    data_root: DataRoot = None,
) -> None:
    """A page to watch training on: curves that grow, latents to move, the set point of a run in training. Ctrl-C ends.

    From a machine elsewhere: ssh -L 8000:localhost:8000 MACHINE, and the same address here.
    """
    from controlvae.cli import serving

    serving.serve(runs, host, port, show, device, data_root)


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A data set; all of them by default.", show_default=False)] = None,
    data_root: DataRoot = None,
) -> None:
    """What a data set needs, where it was looked for, what was found."""
    from controlvae.data.load import DATA_SETS, describe

    for each in [name] if name else DATA_SETS:
        source = describe(each, data_root)
        typer.echo(f"{source.name}: {source.about}")
        typer.echo(f"  needs      {source.needs}")
        typer.echo(f"  looked in  {', '.join(str(path) for path in source.looked_in)}")
        typer.echo(f"  found      {source.found}")


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure of the paper; lists them by default.")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs, tables and figures are kept.")] = Path("runs/paper"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each method, trained side by side.")] = 5,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PRESET", help="Train these alone. Repeatable.")
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside", metavar="NAME=FOLDER", help="Your method: its runs, or scores of its codes. Repeatable."
        ),
    ] = None,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Or only tabulate or draw what is there.")] = True,
    fid: FidPictures = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "2m",
    data_root: DataRoot = None,
) -> None:
    """A table or figure of the paper: methods x seeds trained, evaluated, and set beside the printed numbers."""
    from controlvae.cli import reproducing, training

    if name is None:
        reproducing.show_results()
        return
    how = training.options(device, time_limit, checkpoint_every, False, data_root)
    reproducing.reproduce(name, runs, seeds, only or [], beside or [], train, how, fid)


@app.command()
def target(
    preset: Annotated[str, typer.Argument(help="A name from `controlvae presets`.", show_default=False)],
    sets: Sets = None,
    steps: Annotated[int, typer.Option("--steps", min=10, help="How long to train before reading the KL.")] = 5_000,
    run: Annotated[Path | None, typer.Option("--run", help="Where its runs go; by default runs/PRESET-target.")] = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    data_root: DataRoot = None,
) -> None:
    """What set point to choose: the plain VAE's KL, the range within reach, the paper's band, a recommendation."""
    from controlvae.cli import targeting, training

    how = training.options(device, time_limit, checkpoint_every, False, data_root)
    place = run or Path("runs") / f"{preset}-target"
    targeting.target(preset, sets or [], steps, place, how, shown_command())


@app.command()
def simulate(
    run: RunArgument,
    laws: Annotated[list[str], typer.Option("--law", metavar="LAW", help="A law to try, e.g. 'Auto(18)'. Repeatable.")],
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="How long; by default as long as the run.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The picture to write.")] = None,
) -> None:
    """Try laws and gains in a second: a simple model of how the KL answers β, fitted to a run's log."""
    from controlvae.cli import simulating

    simulating.simulate(run, laws, steps, out)


@app.command()
def sweep(
    preset: Annotated[str, typer.Argument(help="A name from `controlvae presets`.", show_default=False)],
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary", metavar="PART.FIELD=V,V,...", help="A setting and its values. Repeatable: all combined."
        ),
    ],
    sets: Sets = None,
    run: Annotated[Path | None, typer.Option("--run", help="The sweep's folder; by default runs/PRESET-sweep.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each.")] = 1,
    vae: Annotated[
        bool, typer.Option("--vae", help="The plain VAE beside them: what each gains over it, and the paper's bound.")
    ] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure every run, and show those numbers instead of the log's.")
    ] = False,
    fid: FidPictures = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    data_root: DataRoot = None,
) -> None:
    """Several values of a setting x seeds, trained side by side; rate against distortion. Go on by the same command."""
    from controlvae.cli import sweeping, training

    how = training.options(device, time_limit, checkpoint_every, False, data_root)
    place = run or Path("runs") / f"{preset}-sweep"
    sweeping.sweep(preset, sets or [], vary, place, seeds, how, shown_command(), vae=vae, evaluate=evaluate, fid=fid)


@app.command()
def bench(
    preset: Annotated[str, typer.Argument(help="A name from `controlvae presets`.")] = "shapes2d-control-16",
    sets: Sets = None,
    device: Device = "auto",
    models: Annotated[str, typer.Option("--models", help="Numbers of models side by side.")] = "1,5,25",
    batches: Annotated[str, typer.Option("--batches", help="Batch sizes to try with one model.")] = "",
    sizes: Annotated[str, typer.Option("--sizes", help="Sides of pictures to try with one model.")] = "",
    precisions: Annotated[str, typer.Option("--precisions", help="Of fp32, tf32, bf16; a CPU has fp32.")] = "bf16,tf32",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for each line.")] = 5.0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the table as JSON too.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Steps per second here: the loop most people write, pythae's trainer, and ours for one and for many models.

    Where examples are sentences or dialogs, they are counted in tokens, and pythae has no model of them.
    """
    from controlvae.cli import benching
    from controlvae.cli.runs import pick_device
    from controlvae.experiments import override
    from controlvae.experiments import preset as named

    chosen = pick_device(device)
    lists = benching.Lists.parse(models, batches, precisions if chosen.type == "cuda" else "fp32", sizes)
    benching.show(override(named(preset), sets or []), chosen, lists, seconds, out, data_root)


def shown_command() -> str:
    """The command as a person would type it again."""
    return typed(*sys.argv[1:])


def main() -> None:
    """Runs a command; errors meant for people are one line on stderr."""
    debug = "--debug" in sys.argv
    warnings.showwarning = lambda message, *_: print(f"controlvae: {message}".splitlines()[0], file=sys.stderr)
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        # Outside its stand-alone mode the app returns the status of a typer.Exit instead of raising it.
        _leave(app(standalone_mode=False) or 0)
    except (UserError, RunError) as error:
        if debug:
            raise
        print(f"controlvae: {error}", file=sys.stderr)
        _leave(2 if isinstance(error, UserError) else 1)
    except (KeyboardInterrupt, typer.Abort):
        _leave(130)
    except BrokenPipeError:
        _leave(141)
    except Exception as error:
        if _out_of_memory(error) and not debug:
            print("controlvae: out of memory; a smaller training.batch, or for text data.longest, takes less",
                  file=sys.stderr)  # fmt: skip
            _leave(1)
        usage = _usage_error(error)
        if usage is None or debug:
            raise
        if usage:
            print(f"controlvae: {usage}", file=sys.stderr)
        _leave(2 if usage else 0)


def _leave(status: int) -> NoReturn:
    """Ends the process; another Ctrl-C must not land in the middle of the interpreter's clearing up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _out_of_memory(error: Exception) -> bool:
    """By its words: torch has a class of its own for a GPU's alone."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or ("out of memory" in said or "can't allocate memory" in said)


def _usage_error(error: Exception) -> str | None:
    """What the argument parser objects to, in one line; nothing where it only showed help; None for other errors."""
    show = getattr(error, "format_message", None)
    if not callable(show):
        return None
    message = str(show())
    return f"{message} (see controlvae --help)" if message.strip() else ""


if __name__ == "__main__":
    main()
