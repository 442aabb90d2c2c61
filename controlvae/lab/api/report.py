"""Reports from Python: one HTML file about one or several runs."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from controlvae.errors import UserError
from controlvae.lab.api.evaluate import evaluate_run, has_figures
from controlvae.lab.engines.device import pick_device
from controlvae.lab.evaluation.cache import DEFAULT_EXAMPLES, select_pending
from controlvae.lab.reports.page import write_report
from controlvae.lab.reports.pdf import print_pdf, require_browser
from controlvae.lab.reports.report_run import read_runs
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.loaded import LoadedRun, as_folder
from controlvae.lab.runs.user_code import UntrustedCodeError
from controlvae.lab.training.display import Display, make_display

_MAX_FAILURES = 5  # lines about runs that cannot be evaluated
RunSource = LoadedRun | RunFolder | str | Path


def report(
    runs: RunSource | Sequence[RunSource],
    out: str | Path | None = None,
    *,
    examples: int = DEFAULT_EXAMPLES,
    fid: int | None = None,
    pdf: bool = False,
    device: str = "auto",
    data_root: str | Path | None = None,
    progress: bool | Callable[[float], None] = True,
) -> Path:
    """Write an HTML report with curves, images, numbers and the commands that repeat the runs.

    Runs that have not been evaluated are evaluated first. Of several runs, those that cannot be
    read are skipped and named, and those that cannot be evaluated are shown without metrics.

    Args:
        runs: Run, run folder, folder of runs, or a list of them.
        out: HTML file to write. The default is `report.html` in the folder of the runs.
        examples: Number of examples to measure.
        fid: Number of images for FID and KID. The default is 10,000 on a GPU and none on a CPU.
        pdf: Print the report as a PDF with the same name too, by Chromium or Chrome.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives the done fraction.

    Returns:
        The path of the HTML report.

    Raises:
        UserError: If no run can be read, the data of a single run is missing, or `pdf` finds no
            browser.
    """
    sources = [runs] if isinstance(runs, LoadedRun | RunFolder | str | Path) else list(runs)
    if not sources:
        raise UserError("a report needs at least one run, got none")
    if out is not None:
        _check_html_path(Path(out))
    if pdf:
        require_browser()  # before anything is measured
    paths = [as_folder(source).path for source in sources]
    folders = list(dict.fromkeys(folder for path in paths for folder in _find_runs(path)))
    display, chosen = make_display(progress), pick_device(device)
    root = None if data_root is None else Path(data_root)
    # Unreadable runs are skipped before anything is measured.
    runs_to_show, skipped = read_runs(folders)
    if not runs_to_show:
        raise UserError("; ".join(skipped))
    for line in skipped:
        display.note(line)
    readable = [run.folder for run in runs_to_show]
    pending = _select_pending(readable, chosen, examples, fid, display)
    _evaluate_pending(
        pending, chosen, root, display, examples=examples, fid=fid, is_single=len(readable) == 1
    )
    path = _default_path(paths, folders) if out is None else Path(out)
    with display.bar("writing the report") as show:
        write_report(folders, path, progress=lambda fraction, _: show(fraction))
    if pdf:
        print_pdf(path)
    return path


def _evaluate_pending(
    pending: Sequence[RunFolder],
    device: torch.device,
    root: Path | None,
    display: Display,
    *,
    examples: int,
    fid: int | None,
    is_single: bool,
) -> None:
    """Evaluate runs, and name those that cannot be. The only run of a report must succeed."""
    failures = []
    for number, folder in enumerate(pending, start=1):
        position = f"{number} of {len(pending)}" if len(pending) > 1 else ""
        try:
            evaluate_run(
                folder, device, root, display, examples=examples, fid=fid, position=position
            )
        except UserError as error:
            if is_single and not isinstance(error, UntrustedCodeError):
                raise
            failures.append(f"{folder.path} is not evaluated: {error}")
    for line in failures[:_MAX_FAILURES]:
        display.note(line)
    if len(failures) > _MAX_FAILURES:
        display.note(f"{len(failures) - _MAX_FAILURES} more runs are not evaluated")


def _find_runs(path: Path) -> list[RunFolder]:
    """Find the runs at a path. One whose experiment file cannot be read is kept, to be named."""
    run = RunFolder(path)
    return [run] if run.experiment_file.is_file() else find_runs(path)


def _select_pending(
    folders: Sequence[RunFolder],
    device: torch.device,
    examples: int,
    fid: int | None,
    display: Display,
) -> list[RunFolder]:
    """Return the runs to evaluate. A single run always is, because its figures are drawn again."""
    started = []
    for folder in folders:
        if latest_step(folder.checkpoints) is not None:
            started.append(folder)
        elif folder.metrics() is None:
            display.note(f"{folder.path} has no checkpoint, so it is not evaluated")
    if len(folders) == 1:
        return started
    pending = select_pending(started, device, fid, has_figures, examples=examples)
    if done := len(started) - len(pending):
        display.note(f"reusing the metrics of {done} {'run' if done == 1 else 'runs'}")
    return pending


def _check_html_path(path: Path) -> None:
    """Raise UserError before any work is done if the file cannot be a report."""
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out takes an HTML file such as report.html, got {path}")


def _default_path(paths: Sequence[Path], folders: Sequence[RunFolder]) -> Path:
    """Return `report.html` in the run folder, or in the common folder of several runs."""
    if len(folders) == 1:
        return folders[0].report_file
    common, here = Path(os.path.commonpath([path.resolve() for path in paths])), Path.cwd()
    home = here if common in here.parents else common  # not above the working directory
    return Path(os.path.relpath(home)) / "report.html"
