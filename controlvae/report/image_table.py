"""The numbers of pictures in a report: one row per run, and in words what each was measured on or why it was not."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controlvae.experiments.folder import look_up
from controlvae.report.images import fid_words
from controlvae.report.trained import so_many

# Heading, and where the number is in metrics.json, and how it is written.
_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("ELBO", "elbo", "{:.2f}".format),
    ("ELBO, training part", "train.elbo", "{:.2f}".format),
    ("ELBO, best by validation", "best.elbo", "{:.2f}".format),
    ("IWAE", "iwae.bound", "{:.2f}".format),
    ("ELBO, examples of the IWAE", "iwae.elbo_of_the_same", "{:.2f}".format),
    ("bits per dimension", "bits_per_dimension.elbo", "{:.4f}".format),
    ("SSIM", "likeness.ssim", "{:.3f}".format),
    ("PSNR, dB", "likeness.psnr", "{:.2f}".format),
    ("FID, samples", "fid.samples.score", "{:.2f}".format),
    ("FID, samples, best by validation", "best.fid.samples.score", "{:.2f}".format),
    ("FID, reconstructions", "fid.reconstructions.score", "{:.2f}".format),
    ("KID x 1000, samples", "kid.samples.score", lambda value: f"{1000 * value:.2f}"),
    ("KID x 1000, reconstructions", "kid.reconstructions.score", lambda value: f"{1000 * value:.2f}"),
)


def image_table(names: Sequence[str], measured: Sequence[Mapping[str, Any] | None]) -> str:
    """HTML; nothing where no run has been measured on its pictures. A column that no run has is left out."""
    runs = [(name, metrics) for name, metrics in zip(names, measured, strict=True) if metrics and "likeness" in metrics]
    if not runs:
        return ""
    shown = [column for column in _COLUMNS if any(look_up(metrics, column[1]) is not None for _, metrics in runs)]
    rows = [["run", *(head for head, _, _ in shown)]]
    for name, metrics in runs:
        numbers = [(look_up(metrics, path), written) for _, path, written in shown]
        rows.append([name, *("–" if value is None else written(value) for value, written in numbers)])
    cells = ["".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
             for tag, row in zip(["th"] + ["td"] * len(runs), rows, strict=True)]  # fmt: skip
    notes = dict.fromkeys(note for _, metrics in runs for note in _notes(metrics))
    table = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<h3>Pictures</h3><table>{table}</table><p class="quiet">{html.escape(" ".join(notes))}</p>'


def _notes(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences on what was measured and how."""
    notes = [f"ELBO: {so_many(metrics['examples'], metrics['split'])}."]
    if "train" in metrics:
        notes.append(f"Training part: {so_many(metrics['train']['examples'], metrics['train']['split'])}.")
    if "best" in metrics:
        words = metrics["best"].get("skipped", "the weights that had the best ELBO on the validation examples")
        notes.append(f"Best by validation: {words}.")
    if "iwae" in metrics:
        bound = metrics["iwae"]
        notes.append(f"{bound['estimator']}: {so_many(bound['examples'], bound['split'])}.")
    if "how" in metrics.get("bits_per_dimension", {}):
        notes.append(f"Bits per dimension: by the ELBO, {metrics['bits_per_dimension']['how']}.")
    likeness = metrics["likeness"]
    if "ssim" in likeness:
        words = f"{likeness['examples']:,} reconstructions from {likeness['from']} ({likeness['split']})"
        notes.append(f"SSIM and PSNR: {words}.")
    notes += [f"{words}." for words in [fid_words(metrics)] if words]
    skipped = {"bits per dimension": "bits_per_dimension", "SSIM and PSNR": "likeness", "FID and KID": "fid"}
    left_out = {name: metrics.get(key, {}).get("skipped") for name, key in skipped.items()}
    return notes + [f"No {name}: {reason}." for name, reason in left_out.items() if reason]
