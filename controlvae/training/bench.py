"""How fast training goes here: our engines beside the loop most people write, in one run on one machine."""

import importlib.util
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from controlvae.control import Controller
from controlvae.data.examples import Examples
from controlvae.data.load import load
from controlvae.errors import UserError
from controlvae.experiments import DialogVAE, Experiment, TextVAE
from controlvae.models import build
from controlvae.models.layers import as_torch
from controlvae.objectives import LIKELIHOODS, divergence
from controlvae.training.engines import make_engine


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    what: str
    models: int
    batch: int
    pixels: int  # side of a picture
    precision: str
    steps_per_second: float  # of each model
    memory_gib: float

    @property
    def seed_steps_per_second(self) -> float:
        """Training steps of single models: what a table of seeds x methods is counted in."""
        return self.models * self.steps_per_second

    @property
    def images_per_second(self) -> float:
        return self.seed_steps_per_second * self.batch


def bench(
    experiment: Experiment,
    device: torch.device,
    *,
    models: tuple[int, ...],
    batches: tuple[int, ...],
    sizes: tuple[int, ...],
    precisions: tuple[str, ...],
    seconds: float,
    root: Path | None = None,
) -> Iterator[Result]:
    """Measures the others first, before our engine has touched the host's allocator, then ours."""
    resized = [_resized(experiment, size) for size in sizes]  # before any time is spent
    if isinstance(experiment.model, TextVAE | DialogVAE):
        raise UserError(f"{experiment.name} is a model of sentences; bench measures models of pictures")
    examples = load(experiment.data, root).to(device)
    shape = examples.shape
    yield _measure("plain eager loop", experiment, shape, 1, device, seconds, plain_loop(experiment, examples, device))
    if has_pythae() and device.type in ("cpu", "cuda"):
        from controlvae.training.peers import pythae_loop

        advance = pythae_loop(experiment, examples, device)
        yield _measure("pythae's trainer", experiment, shape, 1, device, seconds, advance)
        del advance  # its pictures and model
    for precision in precisions:
        for count in models:
            yield _ours(experiment, examples, device, count, experiment.training.batch, precision, seconds)
    for batch in batches:
        yield _ours(experiment, examples, device, 1, batch, precisions[0], seconds)
    for other in resized:
        examples = load(other.data, root).to(device)
        yield _ours(other, examples, device, 1, other.training.batch, precisions[0], seconds)


def has_pythae() -> bool:
    """Whether the extra that brings the other trainer is installed."""
    return importlib.util.find_spec("pythae") is not None


def _resized(experiment: Experiment, size: int) -> Experiment:
    try:
        return replace(experiment, data=replace(experiment.data, size=size))  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"--sizes: {error}") from None


def _ours(
    experiment: Experiment, examples: Examples, device: torch.device, models: int, batch: int, precision: str,
    seconds: float,
) -> Result:  # fmt: skip
    training = replace(experiment.training, batch=batch, precision=precision)  # type: ignore[arg-type]
    varied = [replace(experiment, training=replace(training, seed=seed + 1)) for seed in range(models)]
    engine = make_engine(varied, examples, device)
    return _measure("controlvae", varied[0], examples.shape, models, device, seconds, engine.advance)


def plain_loop(experiment: Experiment, examples: Examples, device: torch.device) -> Callable[[int], None]:
    """The usual loop: eager, default layouts and optimiser, `.item()` and a controller on the host at every step."""
    model = build(experiment, examples.shape)
    as_torch(model)
    model = model.to(device)
    adam = experiment.optimiser
    optimiser = torch.optim.Adam(model.parameters(), lr=adam.rate, betas=(adam.beta1, adam.beta2))
    control = Controller(experiment.control)
    batch, likelihood = experiment.training.batch, LIKELIHOODS[experiment.objective.likelihood]

    def advance(steps: int) -> None:
        for _ in range(steps):
            x = examples.batch(torch.randint(len(examples), (batch,), device=device))
            logits, posterior = model(x, torch.randn(batch, model.latents, device=device))
            kl = divergence(posterior).kl
            loss: Tensor = likelihood(logits, x).mean() + control.step(kl.item()) * kl
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return advance


def gemm_gflops(device: torch.device, size: int = 2048) -> float:
    """The rate of a square float32 product: what a perfect step could be measured against."""
    a = torch.randn(size, size, device=device)
    return _rate(lambda n: [a @ a for _ in range(n)], device, 1.0) * 2 * size**3 / 1e9


def _measure(
    what: str,
    experiment: Experiment,
    shape: tuple[int, ...],
    models: int,
    device: torch.device,
    seconds: float,
    advance: Callable[[int], object],
) -> Result:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    speed = _rate(advance, device, seconds)
    precision = experiment.training.precision if device.type == "cuda" and what == "controlvae" else "fp32"
    return Result(what, models, experiment.training.batch, shape[-1], precision, speed, _memory(device))


def _rate(advance: Callable[[int], object], device: torch.device, seconds: float) -> float:
    """Calls per second, after a warm-up; the number of calls grows until they fill the time."""
    advance(2)
    steps = 2
    while True:
        _wait(device)
        began = time.perf_counter()
        advance(steps)
        _wait(device)
        taken = time.perf_counter() - began
        if taken >= seconds / 2:
            return steps / taken
        steps = max(steps + 1, int(steps * min(10.0, seconds / max(taken, 1e-6))))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: torch.device) -> float:
    """Peak memory so far: the card's where there is one, else the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "linux" else 2**30)
