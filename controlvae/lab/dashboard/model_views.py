"""What the models of runs say: a picture of a code, what one latent does, sentences from the prior."""

import io
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from controlvae.errors import UserError
from controlvae.lab.data.dataset import ImageDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.evaluation.text import reconstruct_sentences, sample_sentences
from controlvae.lab.plots.image_grid import tile_images, to_channels_last
from controlvae.lab.plots.traversal import rank_latents, resolve_start_image
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import (
    LoadedRun,
    decode_images,
    image_model,
    load_run,
    require_examples,
    with_newest_weights,
)

_KEPT = 2  # models in memory, with their data
REACH = 3.0  # of a latent, as in the paper's traversals


@dataclass
class ModelCache:
    """Opened runs, each at its newest checkpoint; those not asked for lately are closed."""

    root: Path | None
    device: torch.device
    _open: OrderedDict[tuple[Path, int], tuple[int | None, LoadedRun]] = field(
        default_factory=OrderedDict
    )
    _lock: Lock = field(default_factory=Lock)

    def at(self, folder: RunFolder) -> LoadedRun:
        """One at a time: two requests must not load the same data twice."""
        key = (
            folder.path,
            folder.experiment_file.stat().st_mtime_ns,
        )  # another run may have taken its place
        with self._lock:
            last = latest_step(
                folder.checkpoints
            )  # not the step of the weights where the last checkpoint is damaged
            seen, run = self._open.pop(key, (None, None))
            if run is None:
                run = load_run(folder, root=self.root, device=self.device)
            elif seen != last:
                run = with_newest_weights(run)
            if isinstance(run.examples, ImageDataset) and not len(
                run.examples
            ):  # they may come back
                return run
            self._open[key] = last, run
            while len(self._open) > _KEPT:
                self._open.popitem(last=False)
            return run


def latents(run: LoadedRun) -> dict[str, Any]:
    """The latents of largest KL, by name, and a code to begin with: that of an example."""
    image_model(run)
    shown = rank_latents(run)
    each = zip(shown.latents, shown.names(), shown.kl, strict=True)
    rows = [{"latent": latent, "name": name, "kl": kl} for latent, name, kl in each]
    return {
        "step": run.step,
        "latents": rows,
        "among": shown.among,
        "reach": REACH,
        "code": encode_example(run, None),
    }


@torch.no_grad()
def encode_example(run: LoadedRun, example: int | None) -> list[float]:
    """The code of an example: the mean of its posterior."""
    require_examples(run)
    index = int(resolve_start_image(run, None)) if example is None else example % len(run.examples)
    code = run.model.encode(run.examples.batch(torch.tensor([index], device=run.device))).mean[0]
    return [round(value, 3) for value in code.tolist()]


def picture(run: LoadedRun, code: list[float]) -> bytes:
    """What the decoder makes of a code, as PNG."""
    return _png(to_channels_last(decode_images(run, _codes(run, code))[:, None]))


def strip(run: LoadedRun, code: list[float], latent: int, columns: int = 9) -> bytes:
    """One latent from -3 to 3, the others as they are, as PNG."""
    codes = _codes(run, code).repeat(columns, 1)
    if not 0 <= latent < codes.shape[1]:
        raise UserError(f"there is no latent {latent}; the model has {codes.shape[1]}")
    codes[:, latent] = torch.linspace(-REACH, REACH, columns)
    return _png(to_channels_last(decode_images(run, codes)[None]))


def sentences(run: LoadedRun, count: int = 8) -> dict[str, Any]:
    """What a model of sentences writes, and what it reads in the codes of others."""
    if not isinstance(run.examples, SentenceDataset):
        raise UserError(f"{run.folder.path} is not a model of sentences")
    pairs = [pair._asdict() for pair in reconstruct_sentences(run, count)]
    return {"step": run.step, "written": sample_sentences(run, count), "read_back": pairs}


def _codes(run: LoadedRun, code: list[float]) -> torch.Tensor:
    """A code as the decoder takes it, (1, latents)."""
    codes = torch.tensor([code], dtype=torch.float32, device=run.device)
    if len(code) != run.model.latents or not torch.isfinite(codes).all():
        raise UserError(f"a code is {run.model.latents} finite numbers, got {len(code)}")
    return codes


def _png(pictures: np.ndarray) -> bytes:
    """(rows, columns, height, width, channels) in [0, 1] side by side."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray((tile_images(pictures) * 255).round().astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
