"""Model outputs for the page: decoded images, latent strips and sentences."""

import io
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.data.dataset import holds_images
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.evaluation.text import reconstruct_sentences, sample_sentences
from controlvae.lab.plots.image_grid import tile_images, to_channels_last
from controlvae.lab.plots.traversal import rank_latents, resolve_start_image
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import (
    LoadedRun,
    decode_codes,
    image_model,
    load_run,
    require_examples,
    with_newest_weights,
)

_MAX_MODELS = 2  # in memory, with their data
REACH = 3.0  # of a latent, as in the paper's traversals


@dataclass
class ModelCache:
    """Loaded runs, each at its newest checkpoint; the least recently used are dropped."""

    root: Path | None
    device: torch.device
    _runs: OrderedDict[tuple[Path, int], tuple[int | None, LoadedRun]] = field(
        default_factory=OrderedDict
    )
    _lock: Lock = field(default_factory=Lock)

    def load(self, folder: RunFolder) -> LoadedRun:
        """Return a run at its newest checkpoint, loading it if needed.

        Calls are serialised, so that two requests do not load the same data twice.
        """
        # The modification time tells apart runs that were created in the same folder.
        key = folder.path, folder.experiment_file.stat().st_mtime_ns
        with self._lock:
            # If the last checkpoint is corrupt, this is not the step of the loaded weights.
            last = latest_step(folder.checkpoints)
            loaded_step, run = self._runs.pop(key, (None, None))
            if run is None:
                run = load_run(folder, root=self.root, device=self.device)
            elif loaded_step != last:
                run = with_newest_weights(run)
            if holds_images(run.examples) and not len(run.examples):
                return run  # not cached, because its images may become available again
            self._runs[key] = last, run
            while len(self._runs) > _MAX_MODELS:
                self._runs.popitem(last=False)
            return run


def describe_latents(run: LoadedRun) -> dict[str, Any]:
    """Return the latents of largest KL with their names, and the code of an example."""
    image_model(run)
    ranking = rank_latents(run)
    columns = zip(ranking.latents, ranking.names(), ranking.kl, strict=True)
    rows = [{"latent": latent, "name": name, "kl": kl} for latent, name, kl in columns]
    return {
        "step": run.step,
        "latents": rows,
        "among": ranking.among,
        "reach": REACH,
        "code": encode_example(run, None),
    }


@torch.no_grad()
def encode_example(run: LoadedRun, example: int | None) -> list[float]:
    """Return the posterior mean of an example, by default of a fixed random one."""
    require_examples(run)
    index = int(resolve_start_image(run, None)) if example is None else example % len(run.examples)
    code = run.vae.encode(run.examples.batch(torch.tensor([index], device=run.device))).mean[0]
    return [round(value, 3) for value in code.tolist()]


def render_image(run: LoadedRun, code: list[float]) -> bytes:
    """Decode a code and return the image as PNG."""
    return _encode_png(to_channels_last(decode_codes(run, _to_tensor(run, code))[:, None]))


def render_strip(run: LoadedRun, code: list[float], latent: int, columns: int = 9) -> bytes:
    """Decode a code with one latent moved from -3 to 3, and return the images as one PNG.

    Args:
        run: The run.
        code: The code.
        latent: Index of the latent.
        columns: Number of images.
    """
    codes = _to_tensor(run, code).repeat(columns, 1)
    if not 0 <= latent < codes.shape[1]:
        raise UserError(f"latent must be in 0..{codes.shape[1] - 1}, got {latent}")
    codes[:, latent] = torch.linspace(-REACH, REACH, columns)
    return _encode_png(to_channels_last(decode_codes(run, codes)[None]))


def describe_sentences(run: LoadedRun, count: int = 8) -> dict[str, Any]:
    """Return sentences sampled from the prior, and examples with their reconstructions."""
    if not isinstance(run.examples, SentenceDataset):
        raise UserError(f"{run.folder.path} is not a model of sentences")
    pairs = [pair._asdict() for pair in reconstruct_sentences(run, count)]
    return {"step": run.step, "samples": sample_sentences(run, count), "reconstructions": pairs}


def _to_tensor(run: LoadedRun, code: list[float]) -> torch.Tensor:
    """Convert a code to the input of the decoder, (1, latents)."""
    codes = torch.tensor([code], dtype=torch.float32, device=run.device)
    if len(code) != run.vae.latents or not torch.isfinite(codes).all():
        raise UserError(f"a code has {run.vae.latents} finite numbers, got {len(code)}")
    return codes


def _encode_png(images: np.ndarray) -> bytes:
    """Tile (rows, columns, height, width, channels) images in [0, 1] and encode them as PNG."""
    buffer = io.BytesIO()
    Image.fromarray((tile_images(images) * 255).round().astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
