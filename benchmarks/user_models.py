"""Training speed of user-supplied models: `lab.fit`'s engine against a plain loop, in one run.

    python benchmarks/user_models.py --seconds 3 --models 1,8

Four models: an MLP, a convolutional VAE at 64x64, a ResNet VAE at 128x128 and a GRU over tokens.
Each is trained by
  plain      the loop of the README: data on the device, torch.optim.Adam, a tensor to the controller
  item       the same loop with `kl.item()`, `beta` as a number and the loss read at every step
  lightning  Lightning's trainer with `KLControl`, if `--lightning` is set and it is installed
  lab        `lab.fit`'s engine: the whole step in a CUDA graph where that is possible
with the same precision, batch, data and law (`cv.Auto`). On a CPU the sizes are smaller.
`--compile` measures compiled models too.
"""

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import controlvae as cv
from controlvae import lab
from controlvae.lab.custom.engine import CustomEngine
from controlvae.lab.engines.precision import product_precision


class MLP(nn.Module):
    """A small VAE of vectors."""

    def __init__(self, size: int = 784, hidden: int = 256, latents: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.head = nn.Linear(hidden, 2 * latents)
        self.back = nn.Sequential(
            nn.Linear(latents, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, size),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.head(self.body(x)).chunk(2, dim=1)

    def decode(self, z: Tensor) -> Tensor:
        return self.back(z)


class Conv64(nn.Module):
    """A convolutional VAE at 64x64."""

    def __init__(self, latents: int = 10) -> None:
        super().__init__()
        widths = (1, 32, 32, 64, 64)
        down = [
            layer
            for a, b in itertools.pairwise(widths)
            for layer in (nn.Conv2d(a, b, 4, 2, 1), nn.ReLU())
        ]
        self.down = nn.Sequential(
            *down, nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 2 * latents)
        )
        widths = widths[::-1]
        up = [
            layer
            for a, b in itertools.pairwise(widths)
            for layer in (nn.ReLU(), nn.ConvTranspose2d(a, b, 4, 2, 1))
        ]
        self.up = nn.Sequential(
            nn.Linear(latents, 256),
            nn.ReLU(),
            nn.Linear(256, 1024),
            nn.Unflatten(1, (64, 4, 4)),
            *up,
        )

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.down(x).chunk(2, dim=1)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z)


class Block(nn.Module):
    """A residual block that halves or doubles the side."""

    def __init__(self, inside: int, outside: int, up: bool) -> None:
        super().__init__()
        self.up = up
        self.first, self.second = (
            nn.Conv2d(inside, outside, 3, 1 if up else 2, 1),
            nn.Conv2d(outside, outside, 3, 1, 1),
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
        self.skip = nn.Conv2d(inside, outside, 1, 1 if up else 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.up:
            x = F.interpolate(x, scale_factor=2)
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.skip(x))


class ResNet128(nn.Module):
    """A ResNet VAE at 128x128."""

    def __init__(self, latents: int = 64, width: int = 32) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width, 8 * width]
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.Sequential(*(Block(a, b, False) for a, b in pairs))
        self.head = nn.Linear(widths[-1] * 16, 2 * latents)
        self.tail = nn.Linear(latents, widths[-1] * 16)
        self.top = widths[-1]
        self.back = nn.Sequential(
            *(Block(b, a, True) for a, b in reversed(pairs)), Block(width, width, True)
        )
        self.output = nn.Conv2d(width, 3, 3, 1, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.head(self.down(self.stem(x)).flatten(1)).chunk(2, dim=1)

    def decode(self, z: Tensor) -> Tensor:
        return self.output(self.back(self.tail(z).view(len(z), self.top, 4, 4)))


class GRUText(nn.Module):
    """A GRU text VAE with teacher forcing, in the form `terms`."""

    def __init__(self, words: int = 5_000, width: int = 256, latents: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 2 * latents)
        self.start = nn.Linear(latents, width)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, words)

    def terms(self, tokens: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        embedded = self.embedding(tokens)
        _, state = self.reader(embedded)
        mean, log_variance = self.head(state[0]).chunk(2, dim=1)
        z = mean + torch.exp(0.5 * log_variance) * noise.like(mean)
        hidden, _ = self.writer(embedded[:, :-1].contiguous(), self.start(z).tanh()[None])
        logits = self.output(hidden)
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").sum(1)
        return loss, 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)


class Case:
    """A model, its data and its plain loss."""

    def __init__(
        self, make: Callable[[], nn.Module], data: Tensor, batch: int, target: float
    ) -> None:
        self.make, self.data, self.batch, self.target = make, data, batch, target

    def losses(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        if hasattr(model, "terms"):
            noise = type("Noise", (), {"like": staticmethod(torch.randn_like)})
            loss, kl = model.terms(x, noise)
            return loss.mean(), kl.sum(1).mean()
        mean, log_variance = model.encode(x)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        recon = (model.decode(z) - x).square().sum() / len(x)
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum() / len(x)
        return recon, kl


def make_cases(device: torch.device, names: list[str]) -> dict[str, Case]:
    """Return the cases by name, smaller on a CPU."""
    on_gpu = device.type == "cuda"
    count, batch = (8_192, 64) if on_gpu else (1_024, 32)
    generator = torch.Generator().manual_seed(0)

    def images(n: int, channels: int, size: int) -> Tensor:
        return torch.rand(n, channels, size, size, generator=generator)

    make: dict[str, Callable[[], Case]] = {
        "MLP": lambda: Case(MLP, torch.rand(count, 784, generator=generator), 128, 10.0),
        "conv 64x64": lambda: Case(Conv64, images(count, 1, 64), 64, 10.0),
        "ResNet 128x128": lambda: Case(ResNet128, images(count // 4, 3, 128), batch, 50.0),
        "GRU text": lambda: Case(
            GRUText, torch.randint(5_000, (count, 24), generator=generator), 64, 5.0
        ),
    }
    return {name: build() for name, build in make.items() if name in names}


def steps_per_second(advance: Callable[[int], Any], seconds: float, warm_up: int) -> float:
    """Return the speed of `advance(steps)` after a warm-up."""
    sync = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    advance(warm_up)
    sync()
    steps, done, before = max(2, warm_up // 2), 0, time.perf_counter()
    while time.perf_counter() - before < seconds:
        advance(steps)
        done += steps
    sync()
    return done / (time.perf_counter() - before)


def plain_loop(case: Case, device: torch.device, reads_values: bool) -> Callable[[int], None]:
    """Return a function that trains a model for some steps, as a user's own loop does."""
    torch.manual_seed(0)
    model, data = case.make().to(device), case.data.to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    control = cv.Controller(cv.Auto(case.target))

    def advance(steps: int) -> None:
        for _ in range(steps):
            x = data[torch.randint(len(data), (case.batch,), device=device)]
            recon, kl = case.losses(model, x)
            weight = control.step(kl.item()) if reads_values else control.step(kl)
            loss = recon + weight * kl
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if reads_values:
                loss.item()

    return advance


def lightning_speed(case: Case, device: torch.device, seconds: float, warm_up: int) -> float:
    """Return the steps per second of Lightning's trainer, with its own loader and no logger.

    Args:
        case: Model and data.
        device: Device to train on.
        seconds: Time to measure after the warm-up.
        warm_up: Steps before the measurement.
    """
    from lightning.pytorch import Callback, LightningModule, Trainer

    from controlvae.integrations.lightning import KLControl

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.beta = case.make(), 1.0

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            recon, kl = case.losses(self.model, batch[0])
            self.log("kl", kl)
            return recon + self.beta * kl

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class Timer(Callback):
        start = end = 0.0
        steps = 0

        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            now = time.perf_counter()
            if trainer.global_step == warm_up:
                self.start = now
            if trainer.global_step > warm_up:
                self.steps, self.end = self.steps + 1, now
                trainer.should_stop = now - self.start > seconds

    timer, data = Timer(), TensorDataset(case.data)
    trainer = Trainer(
        accelerator=device.type,
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[KLControl(cv.Auto(case.target)), timer],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of workers is deliberate
        trainer.fit(Module(), DataLoader(data, case.batch, shuffle=True, drop_last=True))
    return timer.steps / (timer.end - timer.start)


def lab_engine(
    case: Case, device: torch.device, models: int, precision: str, compiles: bool
) -> tuple[Callable[[int], Any], CustomEngine, list[str]]:
    """Return the lab's engine as a function of steps, the engine, and its notes."""
    notes: list[str] = []
    defined = lab.define(
        case.make,
        case.data,
        law=cv.Auto(case.target),
        steps=10_000_000,
        batch=case.batch,
        precision=precision,
        compile=compiles,
        likelihood=None if case.make is GRUText else "squared-error",
    )
    first = defined.experiment(device)
    experiments = [
        replace(first, training=replace(first.training, seed=seed)) for seed in range(1, models + 1)
    ]
    engine = CustomEngine(
        defined.task.make_trainers(experiments, device, notes.append), notes.append
    )
    return engine.advance, engine, notes


def measure_case(label: str, case: Case, precision: str, options: argparse.Namespace) -> None:
    """Print the speeds of one model: the plain loop, Lightning if wanted, and the lab's engine.

    Args:
        label: Name of the model.
        case: The model and its data.
        precision: Precision of products on a GPU.
        options: Options of the command.
    """
    device, seconds = torch.device(options.device), options.seconds
    warm_up = 100 if device.type == "cuda" else 4

    def plain_speed(loop: Callable[[int], None]) -> float:
        with product_precision(precision, device):  # type: ignore[arg-type]
            return steps_per_second(loop, seconds, warm_up)

    plain = plain_loop(case, device, reads_values=False)
    base, with_item = plain_speed(plain), plain_speed(plain_loop(case, device, reads_values=True))
    print(f"{label}, {precision}: plain {base:,.3g}, with item() {with_item:,.3g}", flush=True)
    if options.lightning:
        speed = lightning_speed(case, device, seconds, warm_up)
        print(f"  Lightning: {speed:,.3g} steps/s = {speed / base:.2f} x plain", flush=True)
    choices = itertools.product(
        map(int, options.models.split(",")), (False, True) if options.compile else (False,)
    )
    for models, compiles in choices:
        before = time.perf_counter()
        advance, engine, notes = lab_engine(case, device, models, precision, compiles)
        advance(warm_up)
        started = time.perf_counter() - before
        # The plain loop again next to each turn: the speed of shared cores changes.
        turns = [
            (steps_per_second(advance, seconds, warm_up), plain_speed(plain))
            for _ in range(options.rounds)
        ]
        speed = statistics.median(lab_speed for lab_speed, _ in turns)
        times = statistics.median(models * lab_speed / other for lab_speed, other in turns)
        kinds = {one.eager_reason or "graph" for one in engine.graphed} or {"eager"}
        words = [*sorted(kinds), *(["compiled"] if compiles else [])]
        print(
            f"  lab, {models} models: {speed:,.3g} steps/s, {speed * models:,.4g} in total"
            f" = {times:.2f} x plain ({', '.join(words)}; ready after {started:.0f} s)"
            f" {'; '.join(sorted(set(notes)))}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=1, help="turns with the plain loop: medians")
    parser.add_argument("--models", default="1,8", help="models side by side")
    parser.add_argument("--precisions", default="tf32", help="fp32, tf32 and bf16, on a GPU")
    parser.add_argument("--cases", default="MLP,conv 64x64,ResNet 128x128,GRU text")
    parser.add_argument("--lightning", action="store_true", help="measure Lightning too")
    parser.add_argument("--compile", action="store_true", help="compile the models too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {name}; steps/s, and times the plain loop")
    for precision in options.precisions.split(",") if on_gpu else ["fp32"]:
        for label, case in make_cases(device, options.cases.split(",")).items():
            measure_case(label, case, precision, options)


if __name__ == "__main__":
    main()
