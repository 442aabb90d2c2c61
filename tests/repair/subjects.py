"""Small runs of the repair campaign: presets and user-supplied models, and how they are sabotaged."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import controlvae as cv
from controlvae import lab

PIXELS = 64
_CORRUPT = 3  # examples in 2,000
TARGETS = {"shapes": 12.0, "text": 4.0, "vector": 8.0, "picture": 8.0}

SHAPES = {
    "training.steps": 900,
    "training.batch": 16,
    "training.log_every": 10,
    "data.images": 2000,
    "model.channels": "(8,8,8)",
    "model.hidden": 64,
    "control": "Auto(12.0, reach_in=200)",
}
TEXT = {
    "training.steps": 1_000,
    "training.batch": 32,
    "training.log_every": 10,
    "model.width": 16,
    "model.inner": 32,
    "control": "Auto(4.0, reach_in=200)",
}
PRESETS = {"shapes": ("shapes2d-quick", SHAPES), "text": ("text-quick", TEXT)}
RATES = {"shapes": 1e-3, "text": 2e-3, "vector": 1e-3, "picture": 1e-3}


class VectorVAE(nn.Module):
    """Multilayer perceptron with `encode` and `decode`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, PIXELS))

    def encode(self, x: torch.Tensor) -> Any:
        return self.encoder(x.flatten(1)).chunk(2, 1)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(z)


class PictureVAE(VectorVAE):
    """Convolutional encoder for 8x8 images, which computes its own loss terms."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 16))
        )

    def encode(self, x: torch.Tensor) -> Any:
        return self.encoder(x).chunk(2, 1)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(z).view(-1, 1, 8, 8)

    def terms(self, x: torch.Tensor, noise: Any) -> Any:
        mean, log_variance = self.encode(x)
        z = mean + (0.5 * log_variance).exp() * noise
        error = 50 * (self.decode(z) - x).square().flatten(1)
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp())
        return self.reduce(error), kl

    def reduce(self, error: torch.Tensor) -> torch.Tensor:
        return error.sum(1)


class MeanPictureVAE(PictureVAE):
    """The same with the usual mistake: a mean over pixels."""

    def terms(self, x: torch.Tensor, noise: Any) -> Any:
        mean, log_variance = self.encode(x)
        z = mean + (0.5 * log_variance).exp() * noise
        error = F.mse_loss(self.decode(z), x, reduction="none").flatten(1).mean(1)
        return error, -0.5 * (1 + log_variance - mean**2 - log_variance.exp())


class HalfVAE(VectorVAE):
    """Model of 16-bit pixels whose decoder runs in float16, where 65,504 is the end."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():  # no overflow before training
            self.decoder[2].weight.mul_(0.1)

    def encode(self, x: torch.Tensor) -> Any:
        return super().encode(x / 60_000)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        with torch.autocast(z.device.type, torch.float16):
            return (self.decoder(z) * 60_000).float()


class Examples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Map-style data set of the rows of a tensor."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def make_rows(seed: int) -> torch.Tensor:
    """Return 2,000 examples of 64 values in [0, 1] with six factors."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(2_000, 6, generator=generator)
    first, second = (torch.randn(*s, generator=generator) for s in ((6, 32), (32, PIXELS)))
    return torch.sigmoid(2 * torch.tanh(factors @ first) @ second / math.sqrt(8))


def mean_error(decoded: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the squared error averaged over pixels: the mistake."""
    return F.mse_loss(decoded, x, reduction="none").flatten(1).mean(1)


def corrupt_places(seed: int) -> torch.Tensor:
    """Return the indices of the examples that are corrupted, none among those tried at the start."""
    generator = torch.Generator().manual_seed(seed + 7)
    return 200 + torch.randperm(1_700, generator=generator)[:_CORRUPT]


def fit_arguments(subject: str, sabotage: str, seed: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return model, data and settings of a user-supplied subject.

    Args:
        subject: `vector` or `picture`.
        sabotage: Name of the sabotage, or an empty text.
        seed: Seed of weights, batches, noise and data.
    """
    rows = make_rows(seed)
    model: Callable[[], nn.Module] = VectorVAE
    settings: dict[str, Any] = {"likelihood": lab.Gaussian(0.01)}
    if subject == "picture":
        rows, model, settings = rows.view(-1, 1, 8, 8), PictureVAE, {}
    data: Any = rows
    places = corrupt_places(seed)
    match sabotage:
        case "mean for sum" if subject == "picture":
            model = MeanPictureVAE
        case "mean for sum":
            settings["likelihood"] = mean_error
        case "bad batches":
            rows[places] *= 255.0 * torch.tensor([1.0, 10.0, 1e4]).view(-1, *[1] * (rows.dim() - 1))
        case "NaN images":
            rows[places, ..., 3] = math.nan
            data = Examples(rows)
        case "half overflow":
            model, data = HalfVAE, 62_000 * rows
            settings["likelihood"] = lab.Gaussian(6_000.0**2)
    rate = RATES[subject] * (30 if sabotage == "rate x 30" else 1)
    common = {"law": cv.Auto(8.0, reach_in=200), "steps": 1_000, "log_every": 10, "batch": 32}
    return model, data, {**common, "learning_rate": rate, "seed": seed, **settings}


def preset_overrides(subject: str, sabotage: str, seed: int) -> dict[str, Any]:
    """Return the settings of a preset subject.

    Args:
        subject: `shapes` or `text`.
        sabotage: Name of the sabotage, or an empty text.
        seed: Seed of the run.
    """
    base = RATES[subject]
    rate: Any = base
    if sabotage == "rate x 30":
        rate = 30 * base
    elif sabotage == "rate leaps x 30":
        rate = f"Points(steps=(400, 401), values=({base}, {30 * base}))"
    return {**PRESETS[subject][1], "optimiser.rate": rate, "training.seed": seed}


def train(subject: str, sabotage: str, seed: int, run: Path, repair: bool) -> Any:
    """Train a subject in this process, and return the run.

    Args:
        subject: Name of the subject.
        sabotage: Name of the sabotage, or an empty text.
        seed: Seed of the run.
        run: Run folder.
        repair: Let the run repair itself.
    """
    options: dict[str, Any] = {"run": run, "threads": 1, "progress": False, "device": "cpu"}
    options |= {"checkpoint_every": 0.5, "repair": repair}
    if subject in PRESETS:
        overrides = preset_overrides(subject, sabotage, seed)
        return lab.train(PRESETS[subject][0], overrides=overrides, **options)
    model, data, settings = fit_arguments(subject, sabotage, seed)
    return lab.fit(model, data, **settings, **options)
