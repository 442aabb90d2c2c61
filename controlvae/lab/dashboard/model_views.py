"""Model outputs for the page: latents, decoded images, latent strips and sentences."""

import io
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image

from controlvae.distributions import gaussian_kl
from controlvae.errors import UserError
from controlvae.lab.data.dataset import holds_images
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.evaluation.rate_curve import RateCurve
from controlvae.lab.evaluation.text import reconstruct_sentences, sample_sentences
from controlvae.lab.models import DialogVAE, TextVAE
from controlvae.lab.models.rate_conditioning import at_rate, find_conditioning
from controlvae.lab.plots.image_grid import tile_images, to_channels_last
from controlvae.lab.plots.traversal import rank_latents, resolve_start_image
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import (
    LoadedRun,
    as_pixels,
    decode_codes,
    image_model,
    load_run,
    require_examples,
    with_newest_weights,
)

_MAX_MODELS = 2  # in memory, with their data
REACH = 3.0  # of a latent, as in the paper's traversals
_conditioning_lock = Lock()  # a network is at one rate at a time


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


def describe_latents(run: LoadedRun, example: int | None, rate: float | None) -> dict[str, Any]:
    """Return the latents of largest KL with their names, and an example to start from.

    Args:
        run: The run, over images, sentences or dialogs.
        example: Index of the example, or None for a fixed random one.
        rate: Rate of a rate-conditioned run in nats, or None for the middle one.
    """
    _require_codes(run)
    with _at_rate(run, rate):
        ranking = rank_latents(run)
        columns = zip(ranking.latents, ranking.names(), ranking.kl, strict=True)
        rows = [{"latent": latent, "name": name, "kl": kl} for latent, name, kl in columns]
        return {
            "step": run.step,
            "latents": rows,
            "among": ranking.among,
            "reach": REACH,
            "rates": rate_limits(run),
            **describe_example(run, example, None),
        }


@torch.no_grad()
def describe_example(run: LoadedRun, example: int | None, rate: float | None) -> dict[str, Any]:
    """Return the posterior of an example, and its text if it has one.

    Args:
        run: The run, over images, sentences or dialogs.
        example: Index of the example, or None for a fixed random one.
        rate: Rate of a rate-conditioned run in nats, or None for the middle one.

    Returns:
        {example, code, sd, kl, text, context}: mean, standard deviation and KL of each latent.
    """
    _require_codes(run)
    index, batch = _batch(run, example)
    with _at_rate(run, rate):
        posterior = run.vae.encode(batch)
    return {
        "example": index,
        "code": _rounded(posterior.mean[0]),
        "sd": _rounded((0.5 * posterior.log_variance[0]).exp()),
        "kl": _rounded(gaussian_kl(posterior)[0]),
        **_texts(run, batch),
    }


def encode_example(run: LoadedRun, example: int | None, rate: float | None = None) -> list[float]:
    """Return the posterior mean of an example, by default of a fixed random one.

    Args:
        run: The run.
        example: Index of the example, or None.
        rate: Rate of a rate-conditioned run in nats, or None for the middle one.
    """
    code: list[float] = describe_example(run, example, rate)["code"]
    return code


def render_image(run: LoadedRun, code: list[float], rate: float | None) -> bytes:
    """Decode a code and return the image as PNG.

    Args:
        run: Run over images.
        code: The code.
        rate: Rate of a rate-conditioned run in nats, or None for the middle one.
    """
    with _at_rate(run, rate):
        return _encode_png(to_channels_last(decode_codes(run, _to_tensor(run, code))[:, None]))


def render_strip(
    run: LoadedRun, code: list[float], latent: int, rate: float | None, columns: int = 9
) -> bytes:
    """Decode a code with one latent moved from -3 to 3, and return the images as one PNG.

    Args:
        run: Run over images.
        code: The code.
        latent: Index of the latent.
        rate: Rate of a rate-conditioned run in nats, or None for the middle one.
        columns: Number of images.
    """
    codes = _to_tensor(run, code).repeat(columns, 1)
    if not 0 <= latent < codes.shape[1]:
        raise UserError(f"latent must be in 0..{codes.shape[1] - 1}, got {latent}")
    codes[:, latent] = torch.linspace(-REACH, REACH, columns)
    with _at_rate(run, rate):
        return _encode_png(to_channels_last(decode_codes(run, codes)[None]))


@torch.no_grad()
def render_original(run: LoadedRun, example: int | None, rate: float | None) -> bytes:
    """Return an example next to its reconstruction, from its posterior mean, as one PNG.

    Args:
        run: Run over images.
        example: Index of the example, or None for a fixed random one.
        rate: Rate of a rate-conditioned run in nats, or None for the middle one.
    """
    model = image_model(run)
    _, batch = _batch(run, example)
    with _at_rate(run, rate):
        decoded = decode_codes(run, model.encode(batch).mean)
    pair = torch.cat([as_pixels(run, batch.to(decoded)), decoded])
    return _encode_png(to_channels_last(pair[None]))


@torch.no_grad()
def decode_sentence(
    run: LoadedRun, code: list[float], example: int | None, rate: float | None
) -> dict[str, Any]:
    """Decode a code greedily: {sentence}.

    Args:
        run: Run over sentences or dialogs.
        code: The code.
        example: Index of the dialog whose context is answered, or None for a fixed random one.
        rate: Rate of a rate-conditioned run in nats, or None for the middle one.
    """
    z = _to_tensor(run, code)
    with _at_rate(run, rate):
        if isinstance(run.vae, TextVAE):
            generated = run.vae.generate(z, run.shape[0], temperature=0.0)
        elif isinstance(run.vae, DialogVAE):
            _, batch = _batch(run, example)
            context = run.vae.encode_context(batch)
            generated = run.vae.respond(z, context, run.shape[1], temperature=0.0)
        else:
            raise UserError(f"{run.folder.path} is not a model of sentences or dialogs")
    assert isinstance(run.examples, SentenceDataset | DialogDataset)
    return {"sentence": run.examples.to_text(generated.tokens[0])}


def rate_limits(run: LoadedRun) -> tuple[float, float] | None:
    """Return the lowest and the highest rate of a rate-conditioned run, or None for others."""
    conditioning = find_conditioning(run.model)
    if conditioning is None:
        return None
    curve = RateCurve.read(run.folder)
    if curve is None or curve.calibration is None:
        return conditioning.low, conditioning.high
    return min(curve.calibration.kl), max(curve.calibration.kl)


def describe_sentences(run: LoadedRun, count: int = 8) -> dict[str, Any]:
    """Return sentences sampled from the prior, and examples with their reconstructions."""
    if not isinstance(run.examples, SentenceDataset):
        raise UserError(f"{run.folder.path} is not a model of sentences")
    pairs = [pair._asdict() for pair in reconstruct_sentences(run, count)]
    return {"step": run.step, "samples": sample_sentences(run, count), "reconstructions": pairs}


@contextmanager
def _at_rate(run: LoadedRun, rate: float | None) -> Iterator[None]:
    """Run a rate-conditioned network at a rate that its curve has calibrated, if it has one."""
    if rate is None:
        yield
        return
    curve = RateCurve.read(run.folder)
    setting = rate if curve is None else curve.setting_for(rate)
    with _conditioning_lock, at_rate(run.model, setting):
        yield


def _require_codes(run: LoadedRun) -> None:
    """Raise UserError if a model has no code to move."""
    if not isinstance(run.vae, TextVAE | DialogVAE):
        image_model(run)


def _batch(run: LoadedRun, example: int | None) -> tuple[int, Any]:
    """Return the index of an example, and a batch of that example."""
    require_examples(run)
    index = int(resolve_start_image(run, None)) if example is None else example % len(run.examples)
    return index, run.examples.batch(torch.tensor([index], device=run.device))


def _texts(run: LoadedRun, batch: Any) -> dict[str, Any]:
    """Return the text of an example, and of a dialog's context."""
    if isinstance(run.examples, SentenceDataset):
        return {"text": run.examples.to_text(batch[0])}
    if isinstance(run.examples, DialogDataset):
        speakers = batch.floors[0].tolist()
        said = [run.examples.to_text(row) for row in batch.context[0] if row[0]]
        lines = zip(speakers, said, strict=False)
        context = [f"{'AB'[int(speaker)]}: {words}" for speaker, words in lines]
        return {"text": run.examples.to_text(batch.response[0]), "context": context}
    return {}


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def _to_tensor(run: LoadedRun, code: list[float]) -> torch.Tensor:
    """Convert a code to the input of the decoder, (1, latents)."""
    codes = torch.tensor([code], dtype=torch.float32, device=run.device)
    if len(code) != run.vae.latents or not torch.isfinite(codes).all():
        raise UserError(f"a code has {run.vae.latents} finite numbers, got {len(code)}")
    return codes


def _encode_png(images: np.ndarray) -> bytes:
    """Tile (rows, columns, height, width, channels) images in [0, 1] and encode them as PNG.

    The gaps are transparent, so that they fit a light and a dark page.
    """
    opaque = 1 - tile_images(np.zeros_like(images))[..., :1]
    pixels = np.concatenate([tile_images(images), opaque], axis=-1)
    buffer = io.BytesIO()
    Image.fromarray((pixels * 255).round().astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
