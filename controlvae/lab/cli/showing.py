"""The commands that show what runs hold: numbers, pictures, sentences, pages."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from controlvae.errors import FactorsError, UserError, shell_command
from controlvae.lab.cli.options import DataRoot, Device, FidPictures, RunArgument, RunOrSeeds, app

_LOOK = "Look at runs"  # as --help groups them
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The file to write; by default one in the run's figures, or the terminal."
    ),
]
Thorough = Annotated[
    bool,
    typer.Option(
        "--thorough",
        help="As many examples and draws on a CPU as on a GPU: minutes instead of seconds.",
    ),
]


@app.command(rich_help_panel=_LOOK)
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of them.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The HTML file to write; by default report.html in their folder."
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option("--examples", min=2, help="How many examples to measure on.")
    ] = 10_000,
    fid: FidPictures = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """One HTML file: curves, pictures, numbers, and the command that makes them again."""
    from controlvae.lab.cli.device import pick_device
    from controlvae.lab.cli.runs import evaluate_run
    from controlvae.lab.reports.page import write_report
    from controlvae.lab.runs.checkpoint import latest_step
    from controlvae.lab.runs.folder import find_runs

    if out is not None:
        _must_be_a_page(out)
    folders = list(dict.fromkeys(folder for path in runs for folder in find_runs(path)))
    for folder in folders:
        folder.records()  # a damaged log is refused before anything is measured
    for folder in folders:
        if latest_step(folder.checkpoints) is not None:
            evaluate_run(folder.path, pick_device(device), data_root, examples, fid)
        elif folder.metrics() is None:
            typer.echo(
                f"controlvae: {folder.path} has no checkpoint: nothing is measured of it", err=True
            )
    if out is None:
        common = Path(os.path.commonpath([path.resolve() for path in runs]))
        here = Path.cwd()
        home = here if common in here.parents else common  # not above where the user is
        out = (
            folders[0].report_file
            if len(folders) == 1
            else Path(os.path.relpath(home)) / "report.html"
        )
    typer.echo(write_report(folders, out))


def _must_be_a_page(path: Path) -> None:
    """Before half a minute of work, not after it."""
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out takes the HTML file to write, as in report.html, got {path}")


@app.command(rich_help_panel=_LOOK)
def dashboard(
    runs: Annotated[Path, typer.Argument(help="The folder whose runs to show.")] = Path("runs"),
    host: Annotated[
        str, typer.Option("--host", help="Others than 127.0.0.1 let others in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="0 takes one that is free.")
    ] = 8_000,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Whether to open it in a browser.")
    ] = True,
    device: Annotated[str, typer.Option("--device", help="Where its pictures are made.")] = "cpu",
    data_root: DataRoot = None,
) -> None:
    """A page to watch training on: curves that grow, latents to move, the set point of a run in training. Ctrl-C ends.

    From a machine elsewhere: ssh -L 8000:localhost:8000 MACHINE, and the same address here.
    """
    from controlvae.lab.cli import serving

    serving.serve(runs, host, port, show, device, data_root)


@app.command(rich_help_panel=_LOOK)
def evaluate(
    run: RunOrSeeds,
    examples: Annotated[
        int, typer.Option("--examples", min=2, help="How many examples to measure on.")
    ] = 10_000,
    fid: FidPictures = None,
    iwae: Annotated[
        int,
        typer.Option(
            "--iwae",
            min=0,
            help="Importance samples per example for the tighter bound; 0: without.",
        ),
    ] = 50,
    factors: Annotated[
        str | None,
        typer.Option(
            "--factors",
            metavar="FILE[:A,B]",
            help="A table of factors, in the place of data.factors.",
        ),
    ] = None,
    thorough: Thorough = False,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Every metric that applies, into metrics.json.

    On the test part of the data where there is one; disentanglement scores,
    which need factors, are of the part it was trained on, the larger one.
    """
    from controlvae.lab.cli import runs
    from controlvae.lab.runs.checkpoint import latest_step
    from controlvae.lab.runs.folder import find_runs

    if run.suffix == ".npz" and run.is_file():
        raise UserError(
            f"{run} is no run folder; the codes in a file are scored by: {shell_command('score', run)}"
        )
    found = find_runs(run)
    begun = [folder for folder in found if latest_step(folder.checkpoints) is not None]
    for folder in begun or found:
        try:  # without its table a run would lose the scores it has
            opened = runs.open_at(
                folder.path, device, data_root, factors or runs.factors_before(folder)
            )
        except FactorsError as error:
            raise UserError(
                f"{folder.path}: {error}; another is given by --factors TABLE. To measure without, and without the "
                f"scores it has, delete {folder.metrics_file}"
            ) from None
        opened = replace(opened, thorough=thorough or opened.thorough)
        metrics = runs.evaluate(opened, examples, fid, iwae)
        runs.show_metrics(str(folder.path), metrics)
        typer.echo(f"written to {folder.metrics_file}")
    if len(begun) < len(found):
        others = ", ".join(str(folder.path) for folder in found if folder not in begun)
        typer.echo(f"controlvae: not measured, for they have no checkpoint yet: {others}", err=True)


@app.command(rich_help_panel=_LOOK)
def score(
    codes: Annotated[
        list[Path], typer.Argument(help="Files that numpy.savez wrote.", show_default=False)
    ],
    factors: Annotated[
        str | None,
        typer.Option(
            "--factors", metavar="FILE[:A,B]", help="A table of factors, a row for each code."
        ),
    ] = None,
    thorough: Thorough = False,
    device: Device = "auto",
) -> None:
    """Every disentanglement score of codes that any model gave, into NAME.scores.json beside NAME.npz.

    A file holds `means`, (examples, latents), `log_variances` where there are
    any, and `factors`, (examples, factors), as whole numbers or words, with
    `factor_names`; those named in `unordered` are no quantities. Or a CSV file
    has them, named in its first line: `--factors table.csv`. Codes of all
    737,280 pictures of 2D Shapes, in their order, need no factors; of others
    without any, KL, mutual information and active units alone are measured.
    `reconstruction` is one number in nats. A CPU takes 20,000 examples, a GPU
    all, and so does a CPU with --thorough. `reproduce --beside` sets the scores in a table.
    """
    from controlvae.lab.cli.device import pick_device
    from controlvae.lab.cli.progress import simple_bar
    from controlvae.lab.cli.runs import show_metrics
    from controlvae.lab.evaluation.external_codes import score_codes

    for path in codes:
        with simple_bar(f"scoring {path}") as progress:
            file, metrics = score_codes(
                path, pick_device(device), progress, factors=factors, thorough=thorough
            )
        show_metrics(str(path), metrics)
        typer.echo(f"written to {file.path}")


@app.command(rich_help_panel=_LOOK)
def traverse(
    run: RunArgument,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            help="Start from this file, example (by its index), square, ellipse or heart.",
        ),
    ] = None,
    reach: Annotated[
        float,
        typer.Option("--range", min=0.1, max=100.0, help="Each latent runs from -RANGE to RANGE."),
    ] = 3.0,
    columns: Annotated[
        int, typer.Option("--columns", min=2, max=20, help="Pictures in a row.")
    ] = 10,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="At most so many latents, those of largest KL.")
    ] = 20,
    animate: Annotated[
        bool, typer.Option("--animate", help="Write a GIF of each, too, of ten latents at most.")
    ] = False,
    out: Out = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """A picture of what each latent does, rows ordered by KL: from one image and, of all shapes, the paper's three."""
    from controlvae.lab.cli.runs import open_at
    from controlvae.lab.plots import animation, traversal
    from controlvae.lab.plots.figure_files import save_figure
    from controlvae.lab.plots.traversal import plot_traversal

    if animate and out is not None and out.suffix.lower() == ".gif":
        raise UserError(
            f"--out is the picture that stands still; --animate writes {out} beside {out.with_suffix('.png')}"
        )
    opened = open_at(run, device, data_root)
    # One file has room for one picture: the first.
    starts = [image] if image is not None or out is not None else traversal.start_images(opened)
    for start in starts:
        path = out or opened.folder.figures / (
            f"traversal-{Path(start).stem}.png" if start else "traversal.png"
        )
        figure = plot_traversal(opened, image=start, reach=reach, columns=columns, rows=rows)
        typer.echo(save_figure(figure, path, step=opened.step))
        if animate:
            typer.echo(
                animation.animate_traversal(
                    opened, path.with_suffix(".gif"), image=start, reach=reach, rows=rows
                )
            )


@app.command(rich_help_panel=_LOOK)
def reconstruct(
    run: RunArgument,
    columns: Annotated[
        int, typer.Option("--columns", min=1, max=40, help="How many pictures, or sentences.")
    ] = 12,
    out: Out = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """A picture of data above and reconstructions below; or sentences and what their codes are read back as."""
    from controlvae.lab.cli.runs import open_at
    from controlvae.lab.data.text.sentences import SentenceDataset
    from controlvae.lab.evaluation.text import reconstruct_sentences
    from controlvae.lab.plots.figure_files import save_figure
    from controlvae.lab.plots.image_grid import plot_reconstructions
    from controlvae.lab.runs.loaded import on_unseen_examples

    opened = open_at(run, device, data_root)
    if isinstance(opened.examples, SentenceDataset):
        pairs = reconstruct_sentences(on_unseen_examples(opened), columns)
        _put("\n\n".join(f"data  {pair.sentence}\ncode  {pair.read_back}" for pair in pairs), out)
        return
    path = out or opened.folder.figures / "reconstruction.png"
    typer.echo(save_figure(plot_reconstructions(opened, columns), path, step=opened.step))


@app.command(rich_help_panel=_LOOK)
def sample(
    run: RunArgument,
    count: Annotated[int, typer.Option("--count", min=1, help="How many.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
    columns: Annotated[
        int | None, typer.Option("--columns", min=1, help="Pictures in a row; by default a square.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of sentences: 0 takes the likeliest word; by default 1.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Of sentences: draw from so many likeliest words.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Of sentences: from the likeliest with this share.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Of sentences: search with so many candidates.")
    ] = None,
    out: Out = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """From the prior, N(0, I): a grid of pictures, or sentences."""
    from controlvae.lab.cli.runs import open_at
    from controlvae.lab.data.text.sentences import SentenceDataset
    from controlvae.lab.evaluation.text import sample_sentences
    from controlvae.lab.plots.figure_files import save_pixels
    from controlvae.lab.plots.samples import make_sample_grid
    from controlvae.lab.runs.loaded import picture_model

    opened = open_at(run, device, data_root)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "beam": beam}
    how = {name: value for name, value in given.items() if value is not None}
    if isinstance(opened.examples, SentenceDataset):
        if columns is not None:
            raise UserError(f"--columns is for pictures; {run} is a model of sentences, one a line")
        _put("\n".join(sample_sentences(opened, count, seed=seed, **how)), out)
        return
    picture_model(opened)  # a model of dialogs is refused with the command for it
    if how:
        raise UserError(
            f"--{next(iter(how)).replace('_', '-')} is for sentences; {run} is a model of pictures"
        )
    pixels = make_sample_grid(opened, count, seed=seed, columns=columns)
    typer.echo(save_pixels(pixels, out or opened.folder.figures / "samples.png", step=opened.step))


@app.command(rich_help_panel=_LOOK)
def interpolate(
    run: RunArgument,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Index of an example, a picture file, or a sentence; a random example by default.",
        ),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Another.")] = None,
    columns: Annotated[
        int, typer.Option("--columns", min=2, max=40, help="Pictures, or sentences, on the way.")
    ] = 10,
    out: Out = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Pictures, or sentences, on the way from one example to another."""
    from controlvae.lab.cli.runs import name_unknown, open_at
    from controlvae.lab.data.text.sentences import SentenceDataset
    from controlvae.lab.evaluation.text import interpolate_sentences, resolve_sentences
    from controlvae.lab.plots.figure_files import save_figure
    from controlvae.lab.plots.samples import plot_interpolation, select_endpoints

    opened = open_at(run, device, data_root)
    if isinstance(opened.examples, SentenceDataset):
        rows, unknown = resolve_sentences(opened, start, end)
        name_unknown(unknown)
        ends = [opened.examples.words(row) for row in rows]
        lines = interpolate_sentences(opened, rows, columns)
        _put(
            "\n".join(
                [f"from  {ends[0]}", *(f"      {line}" for line in lines), f"to    {ends[1]}"]
            ),
            out,
        )
        return
    first, last = (picture.short for picture in select_endpoints(opened, start, end))
    path = out or opened.folder.figures / f"interpolation-{first}-{last}.png"
    typer.echo(save_figure(plot_interpolation(opened, start, end, columns), path, step=opened.step))


def _put(text: str, out: Path | None) -> None:
    """What a model of sentences says, to the terminal or into a file, which is then named."""
    from controlvae.lab.io import write_text

    if out is not None:
        write_text(out, text + "\n")
    typer.echo(text if out is None else out)


@app.command(rich_help_panel=_LOOK)
def chat(
    run: RunArgument,
    count: Annotated[
        int, typer.Option("--count", min=1, max=100, help="Responses to each line.")
    ] = 5,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", min=0.0, help="Of the words; 0 takes the likeliest, as the paper does."
        ),
    ] = 0.0,
    topic: Annotated[
        str, typer.Option("--topic", help="What it is about, of the topics it was trained on.")
    ] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the codes.")] = 0,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Type a line, get several responses, each from a code of the prior; lines may come from a pipe. Ctrl-D ends."""
    from controlvae.lab.cli import chat as chatting
    from controlvae.lab.cli.runs import open_at

    chatting.chat(open_at(run, device, data_root), count, temperature, topic, seed)
