"""Scores of external codes, from Python."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from controlvae.lab.engines.device import pick_device
from controlvae.lab.evaluation.external_codes import ScoreFile, score_codes
from controlvae.lab.evaluation.selection import CODE_METRICS, select_metrics
from controlvae.lab.evaluation.udr import compare_files
from controlvae.lab.training.display import make_display


def score(
    codes: str | Path,
    *,
    factors: str | None = None,
    thorough: bool = False,
    metrics: str | Sequence[str] | None = None,
    device: str = "auto",
    progress: bool | Callable[[float], None] = True,
) -> tuple[ScoreFile, dict[str, Any]]:
    """Measure every disentanglement score of codes from any model, and write `NAME.scores.json`.

    Args:
        codes: File written by `numpy.savez`. See `controlvae score --help` for its arrays.
        factors: Table of factors `FILE[:A,B]`, one row per code.
        thorough: Use as many examples on a CPU as on a GPU.
        metrics: Scores to measure, such as `["infomec", "dci_es"]`, or `"all"`. `udr` needs several
            files: `score_each`.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        progress: True prints progress, False is silent, a function receives the done fraction.

    Returns:
        The file with the scores, and the scores.
    """
    results = score_each(
        [Path(codes)],
        factors=factors,
        thorough=thorough,
        metrics=metrics,
        device=device,
        progress=progress,
    )
    return next(results)


def score_each(
    paths: Sequence[Path],
    *,
    factors: str | None = None,
    thorough: bool = False,
    metrics: str | Sequence[str] | None = None,
    device: str = "auto",
    progress: bool | Callable[[float], None] = True,
) -> Iterator[tuple[ScoreFile, dict[str, Any]]]:
    """Score files of codes one by one, and compare them with each other if UDR is asked for.

    Args:
        paths: Files written by `numpy.savez`. For UDR their rows are the same examples.
        factors: Table of factors `FILE[:A,B]`, one row per code.
        thorough: Use as many examples on a CPU as on a GPU.
        metrics: Scores to measure; None takes all but the optional ones.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        progress: True prints progress, False is silent, a function receives the done fraction.

    Yields:
        Each file with scores, and the scores.
    """
    selection, display = select_metrics(metrics, known=CODE_METRICS), make_display(progress)
    further: list[dict[str, Any]] = [{} for _ in paths]
    if selection.wants("udr") and not (selection.may_skip and len(paths) < 2):
        further = [{"udr": entry} for entry in compare_files(paths)]
    for path, entries in zip(paths, further, strict=True):
        with display.bar(f"scoring {path}") as show:
            result = score_codes(
                path,
                pick_device(device),
                show,
                factors=factors,
                thorough=thorough,
                selection=selection,
                further=entries,
            )
        yield result
