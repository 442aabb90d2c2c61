"""Commands `evaluate`, `score`, `report` and `export`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from controlvae.lab.cli import options as cli


@cli.command("report", cli.LOOK)
def _report(
    runs: Annotated[list[Path], cli.argument("Run folders, or folders of runs.")],
    out: Annotated[
        Path | None, cli.option("HTML file to write. Default: report.html in their folder.")
    ] = None,
    examples: cli.Examples = 10_000,
    fid: cli.Fid = None,
    pdf: Annotated[bool, cli.flag("--pdf", "Print it as a PDF too. Needs Chromium.")] = False,
    device: cli.Device = "auto",
    data_root: cli.DataRoot = None,
) -> None:
    """Write an HTML report: curves, images, numbers, and the commands that repeat the runs."""
    from controlvae.lab.api.report import report

    measured: dict[str, Any] = {"examples": examples, "fid": fid}
    path = report(runs, out, **measured, pdf=pdf, device=device, data_root=data_root)
    typer.echo(path)
    if pdf:
        typer.echo(path.with_suffix(".pdf"))


@cli.command("evaluate", cli.LOOK)
def _evaluate(
    run: cli.RunsArgument,
    examples: cli.Examples = 10_000,
    fid: cli.Fid = None,
    iwae: Annotated[
        int, cli.option("Importance samples per example for the tighter bound. 0: none.", 0)
    ] = 50,
    factors: cli.Factors = None,
    thorough: cli.Thorough = False,
    metrics: cli.Metrics = None,
    weights: cli.Weights = None,
    device: cli.Device = "auto",
    data_root: cli.DataRoot = None,
) -> None:
    """Measure every metric that applies, and write metrics.json.

    The test set is measured if there is one. Disentanglement scores need factors
    and use the training set, which is larger. Only on request: dci_es, udr (of
    the runs in a folder), ms_ssim, lpips, fd_dinov2, prdc_dinov2, corpus_bleu
    and mauve. With --metrics, other results for the same weights are kept.
    """
    from controlvae.lab.api.evaluate import evaluate_each, make_display
    from controlvae.lab.cli.format import print_metrics
    from controlvae.lab.evaluation.selection import select_metrics

    selection = select_metrics(metrics, cli.parse_weights(weights))
    sizes: dict[str, Any] = {"examples": examples, "fid": fid, "iwae": iwae, "thorough": thorough}
    where: dict[str, Any] = {"device": device, "data_root": data_root, "selection": selection}
    results = evaluate_each(run, factors=factors, display=make_display(True), **sizes, **where)
    for folder, measured in results:
        print_metrics(str(folder.path), measured)
        typer.echo(f"written to {folder.metrics_file}")


@cli.command("score", cli.LOOK)
def _score(
    codes: Annotated[list[Path], cli.argument("Files written by numpy.savez.")],
    factors: cli.Factors = None,
    thorough: cli.Thorough = False,
    metrics: cli.Metrics = None,
    device: cli.Device = "auto",
) -> None:
    """Measure every disentanglement score of codes from any model.

    The scores of NAME.npz are written to NAME.scores.json.

    A file holds `means`, (examples, latents), and may hold `log_variances`. It
    also holds `factors`, (examples, factors), as whole numbers or words, and
    `factor_names`. Factors in `unordered` are categories. A CSV file with a
    header can hold the factors instead: `--factors table.csv`. Codes of all
    737,280 images of 2D Shapes, in their order, need no factors. Without
    factors only KL, mutual information and active units are measured.
    `reconstruction` is one number in nats. A CPU takes 20,000 examples, a GPU
    all of them, and so does a CPU with --thorough. `reproduce --method` puts
    the scores in a table. `--metrics udr` compares files of several models on
    the same examples, without factors.
    """
    from controlvae.lab.api.score import score_each
    from controlvae.lab.cli.format import print_metrics

    options: dict[str, Any] = {"factors": factors, "thorough": thorough, "metrics": metrics}
    for path, (file, scores) in zip(
        codes, score_each(codes, **options, device=device), strict=True
    ):
        print_metrics(str(path), scores)
        typer.echo(f"written to {file.path}")


@cli.command("export", cli.LOOK)
def _export(
    run: cli.RunArgument,
    out: Annotated[Path, cli.option("New or empty folder to write.")],
    formats: cli.Formats = None,
    data_root: cli.DataRoot = None,
) -> None:
    """Write encoder and decoder as torch.export or ONNX programs, and weights with a model card.

    Programs are read back and compared with the model. A hub takes the folder as it is.
    """
    from controlvae.lab.api.export import DEFAULT_FORMATS, export

    for file in export(run, out, formats or DEFAULT_FORMATS, data_root=data_root):
        typer.echo(file)
