"""How fast training goes here: our engines beside the loop most people write, in one run on one machine."""

import importlib.util
import multiprocessing
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.lab.config import Elbo, Experiment
from controlvae.lab.config.data import ImageSettings
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.select import make_engine
from controlvae.lab.models import build
from controlvae.lab.models.reconstruction import reconstruction_loss
from controlvae.lab.objectives import ObjectiveInputs, compute_divergence

ROUNDS = 5  # on a CPU, whose cores other programs come and go on

What = Literal["plain eager loop", "pythae's trainer", "controlvae"]


@dataclass(frozen=True)
class Line:
    """What one line of the table measures."""

    what: What
    experiment: Experiment
    models: int = 1


@dataclass(frozen=True)
class BenchResult:
    """One line of the table."""

    what: What
    models: int
    batch: int
    pixels: int | None  # side of a picture
    tokens: float | None  # of a sentence or response on average, EOS among them and padding not
    precision: str
    steps_per_second: float  # of each model
    memory_gib: float

    @property
    def seed_steps_per_second(self) -> float:
        """Training steps of single models: what a table of seeds x methods is counted in."""
        return self.models * self.steps_per_second

    @property
    def inputs_per_second(self) -> float:
        """Pictures, or tokens where examples are sentences."""
        return self.seed_steps_per_second * self.batch * (self.tokens or 1)


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
) -> Iterator[BenchResult]:
    """The others, then ours. On a CPU the lines to be compared take turns, and each gets its median over the turns."""
    trained = [(experiment, precision, count) for precision in precisions for count in models]
    others = [(_of_batch(experiment, batch), precisions[0], 1) for batch in batches]
    others += [(_of_size(experiment, size), precisions[0], 1) for size in sizes]
    compared = [Line("plain eager loop", experiment)]
    if (
        has_pythae()
        and isinstance(experiment.data, ImageSettings)
        and device.type in ("cpu", "cuda")
    ):
        compared.append(Line("pythae's trainer", experiment))
    compared += [_ours(*line) for line in trained]
    together = [compared] if device.type == "cpu" else [[line] for line in compared]
    for group in [*together, *([_ours(*line)] for line in others)]:
        yield from _take_turns(group, device, seconds, root, rounds=ROUNDS if len(group) > 1 else 1)


def has_pythae() -> bool:
    """Whether the extra that brings the other trainer is installed."""
    return importlib.util.find_spec("pythae") is not None


def _of_batch(experiment: Experiment, batch: int) -> Experiment:
    try:
        return replace(experiment, training=replace(experiment.training, batch=batch))
    except ValueError as error:
        raise UserError(f"--batches: {error}") from None


def _of_size(experiment: Experiment, size: int) -> Experiment:
    if not isinstance(experiment.data, ImageSettings):
        raise UserError(f"--sizes are of pictures, and {experiment.name} is a model of sentences")
    try:
        return replace(experiment, data=replace(experiment.data, size=size))  # type: ignore[call-arg]
    except ValueError as error:
        raise UserError(f"--sizes: {error}") from None


def _ours(experiment: Experiment, precision: str, models: int) -> Line:
    training = replace(experiment.training, precision=precision)  # type: ignore[arg-type]
    return Line("controlvae", replace(experiment, training=training), models)


def _take_turns(
    lines: Sequence[Line], device: torch.device, seconds: float, root: Path | None, rounds: int
) -> Iterator[BenchResult]:
    with ExitStack() as stack:
        runners = [
            stack.enter_context(closing(_Runner(line, device, seconds, root))) for line in lines
        ]
        sizes = [runner.answer() for runner in runners]  # all are ready before the first is timed
        turns = [[runner.measure() for runner in runners] for _ in range(rounds)]
    for line, (pixels, tokens), measured in zip(
        lines, sizes, zip(*turns, strict=True), strict=True
    ):
        speeds, memory = zip(*measured, strict=True)
        training = line.experiment.training
        precision = (
            training.precision if device.type == "cuda" and line.what == "controlvae" else "fp32"
        )
        yield BenchResult(
            line.what,
            line.models,
            training.batch,
            pixels,
            tokens,
            precision,
            statistics.median(speeds),
            max(memory),
        )


class _Runner:
    """Measures a line in a process of its own, which nothing that another line did to memory or caches can touch."""

    def __init__(self, line: Line, device: torch.device, seconds: float, root: Path | None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, line, device, seconds, root), daemon=True
        )
        self._process.start()
        theirs.close()

    def measure(self) -> tuple[float, float]:
        """Steps per second and peak memory in GiB."""
        self._pipe.send("measure")
        return self.answer()

    def answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise UserError(
                "a process of the bench was killed: most likely there is too little memory"
            ) from None
        if isinstance(answer, ValueError):  # settings that do not fit together
            raise UserError(str(answer)) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.terminate()  # it may be in the middle of a turn
        self._process.join()


def _serve(
    pipe: Connection, line: Line, device: torch.device, seconds: float, root: Path | None
) -> None:
    """Says how large its examples are once it is ready, then measures whenever it is asked, until nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    try:
        examples = load_dataset(line.experiment.data, root).to(device)
        advance = _prepare(line, examples, device)
        advance(2)
        pipe.send(_size(examples))
        while pipe.recv():
            pipe.send((_rate(advance, device, seconds), _memory(device)))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(error)


def _size(examples: Dataset) -> tuple[int | None, float | None]:
    """Pixels and tokens of a `Result`."""
    if not isinstance(examples, SentenceDataset | DialogDataset):
        return examples.shape[-1], None
    return None, examples.lengths.reshape(len(examples), -1)[:, -1].double().mean().item()


def _prepare(line: Line, examples: Dataset, device: torch.device) -> Callable[[int], object]:
    match line.what:
        case "plain eager loop":
            return plain_loop(line.experiment, examples, device)
        case "pythae's trainer":
            from controlvae.lab.bench.pythae_baseline import pythae_loop

            return pythae_loop(line.experiment, examples, device)
        case "controlvae":
            training = line.experiment.training
            seeds = [replace(training, seed=seed + 1) for seed in range(line.models)]
            return make_engine(
                [replace(line.experiment, training=seed) for seed in seeds], examples, device
            ).advance


def plain_loop(
    experiment: Experiment, examples: Dataset, device: torch.device
) -> Callable[[int], None]:
    """The usual loop: eager, default layouts and optimiser, `.item()` and a controller on the host at every step."""
    model = build(experiment, examples)
    model = model.to(device)
    adam = experiment.optimiser
    optimiser = torch.optim.Adam(
        model.parameters(), lr=adam.at(1.0), betas=(adam.beta1, adam.beta2)
    )
    control = Controller(experiment.control)
    batch, objective = experiment.training.batch, experiment.objective
    if objective.critic_spec() is not None:
        objective = Elbo(objective.likelihood)  # a critic has no usual loop
    cost = reconstruction_loss(objective.likelihood)

    def advance(steps: int) -> None:
        for _ in range(steps):
            x = _random_batch(examples, batch, device)
            posterior = model.encode(x)
            z = posterior.sample(torch.randn(batch, model.latents, device=device))
            inputs = ObjectiveInputs(
                compute_divergence(posterior), posterior, z, len(examples), model=model, x=x
            )
            terms = objective.terms(inputs)
            reconstruction = cost(model, z, x, posterior.given).mean()
            measured = (
                reconstruction if experiment.control.holds_reconstruction else terms.controlled
            )
            loss: Tensor = (
                reconstruction
                + terms.uncontrolled
                + control.step(measured.item()) * terms.controlled
            )
            optimiser.zero_grad()
            loss.backward()
            if adam.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), adam.clip)
            optimiser.step()

    return advance


def _random_batch(examples: Dataset, batch: int, device: torch.device) -> Any:
    """Any examples; sentences are padded to the longest among them."""
    if not isinstance(examples, SentenceDataset | DialogDataset):
        return examples.batch(torch.randint(len(examples), (batch,), device=device))
    indices = torch.randint(len(examples), (batch,))
    return examples.batch(indices.to(device), examples.lengths[indices].amax(0).tolist())  # type: ignore[arg-type]


def gemm_gflops(device: torch.device, size: int = 2048) -> float:
    """The rate of a square float32 product: what a perfect step could be measured against."""
    a = torch.randn(size, size, device=device)
    return _rate(lambda n: [a @ a for _ in range(n)], device, 1.0) * 2 * size**3 / 1e9


def _rate(advance: Callable[[int], object], device: torch.device, seconds: float) -> float:
    """Calls per second; their number grows until they fill the time, so that the last trial alone counts."""
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
