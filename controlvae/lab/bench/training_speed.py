"""Training speed of our engines, compared with other loops on the same machine."""

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

from controlvae.errors import UserError
from controlvae.lab.config import Experiment
from controlvae.lab.config.data import ImageSettings
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.select import make_engine
from controlvae.lab.engines.threads import model_threads, use_threads

ROUNDS = 5  # on a CPU, whose cores other programs use too

LoopName = Literal["plain eager loop", "pythae's trainer", "controlvae"]


@dataclass(frozen=True)
class BenchLine:
    """Settings of one line of the table."""

    what: LoopName
    experiment: Experiment
    models: int = 1


@dataclass(frozen=True)
class BenchResult:
    """Measurements of one line of the table."""

    what: LoopName
    models: int
    batch: int
    pixels: int | None  # width of an image
    tokens: float | None  # mean per sentence or response, with EOS and without padding
    precision: str
    steps_per_second: float  # of each model
    memory_gib: float

    @property
    def seed_steps_per_second(self) -> float:
        """Training steps of all models together, which a table of seeds and methods needs."""
        return self.models * self.steps_per_second

    @property
    def inputs_per_second(self) -> float:
        """Images, or tokens of sentences, per second."""
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
    """Measure the baselines, then our engines.

    On a CPU the lines to compare take turns, and each gets the median of its turns.

    Args:
        experiment: Experiment to train.
        device: Device to measure.
        models: Numbers of models side by side.
        batches: Batch sizes to try with one model.
        sizes: Image sizes to try with one model.
        precisions: Names of precisions.
        seconds: Time for each line.
        root: Data folder that is searched first.

    Yields:
        One result per line of the table.
    """
    trained = [(experiment, precision, count) for precision in precisions for count in models]
    others = [(_with_batch(experiment, batch), precisions[0], 1) for batch in batches]
    others += [(_with_size(experiment, size), precisions[0], 1) for size in sizes]
    compared = [BenchLine("plain eager loop", experiment)]
    if (
        has_pythae()
        and isinstance(experiment.data, ImageSettings)
        and device.type in ("cpu", "cuda")
    ):
        compared.append(BenchLine("pythae's trainer", experiment))
    compared += [_our_line(*line) for line in trained]
    together = [compared] if device.type == "cpu" else [[line] for line in compared]
    for group in [*together, *([_our_line(*line)] for line in others)]:
        yield from _measure_in_turns(
            group, device, seconds, root, rounds=ROUNDS if len(group) > 1 else 1
        )


def has_pythae() -> bool:
    """Return True if pythae is installed."""
    return importlib.util.find_spec("pythae") is not None


def _with_batch(experiment: Experiment, batch: int) -> Experiment:
    try:
        return replace(experiment, training=replace(experiment.training, batch=batch))
    except ValueError as error:
        raise UserError(f"--batches: {error}") from None


def _with_size(experiment: Experiment, size: int) -> Experiment:
    if not isinstance(experiment.data, ImageSettings):
        raise UserError(f"--sizes needs images, but {experiment.name} is a model of sentences")
    try:
        return replace(experiment, data=replace(experiment.data, size=size))  # type: ignore[call-arg]
    except ValueError as error:
        raise UserError(f"--sizes: {error}") from None


def _our_line(experiment: Experiment, precision: str, models: int) -> BenchLine:
    training = replace(experiment.training, precision=precision)  # type: ignore[arg-type]
    return BenchLine("controlvae", replace(experiment, training=training), models)


def _measure_in_turns(
    lines: Sequence[BenchLine], device: torch.device, seconds: float, root: Path | None, rounds: int
) -> Iterator[BenchResult]:
    with ExitStack() as stack:
        runners = [
            stack.enter_context(closing(_Runner(line, device, seconds, root))) for line in lines
        ]
        sizes = [runner.receive() for runner in runners]  # all are ready before the first is timed
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
    """Measures a line in a separate process, so that lines do not share memory or caches."""

    def __init__(
        self, line: BenchLine, device: torch.device, seconds: float, root: Path | None
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, remote = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(remote, line, device, seconds, root), daemon=True
        )
        self._process.start()
        remote.close()

    def measure(self) -> tuple[float, float]:
        """Return steps per second and peak memory in GiB."""
        self._pipe.send("measure")
        return self.receive()

    def receive(self) -> Any:
        """Return the next message of the process, or raise its error."""
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise UserError(
                "a process of the benchmark was killed, probably for lack of memory"
            ) from None
        if isinstance(answer, ValueError):  # settings that do not fit together
            raise UserError(str(answer)) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Stop the process."""
        self._pipe.close()
        self._process.terminate()  # it may be in the middle of a turn
        self._process.join()


def _serve(
    pipe: Connection, line: BenchLine, device: torch.device, seconds: float, root: Path | None
) -> None:
    """Send the size of the examples when ready, then measure on request until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
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
    """Return pixels and tokens of a `BenchResult`."""
    if not isinstance(examples, SentenceDataset | DialogDataset):
        return examples.shape[-1], None
    return None, examples.lengths.reshape(len(examples), -1)[:, -1].double().mean().item()


def _prepare(line: BenchLine, examples: Dataset, device: torch.device) -> Callable[[int], object]:
    match line.what:
        case "plain eager loop":
            from controlvae.lab.bench.plain_baseline import plain_loop

            return plain_loop(line.experiment, examples, device)
        case "pythae's trainer":
            from controlvae.lab.bench.pythae_baseline import pythae_loop

            return pythae_loop(line.experiment, examples, device)
        case "controlvae":
            training = line.experiment.training
            seeds = [replace(training, seed=seed + 1) for seed in range(line.models)]
            engine = make_engine(
                [replace(line.experiment, training=seed) for seed in seeds], examples, device
            )
            threads = model_threads(line.experiment) if device.type == "cpu" else None
            return use_threads(threads)(engine.advance)


def gemm_gflops(device: torch.device, size: int = 2048) -> float:
    """Return the rate of a square float32 product, as a reference for the steps."""
    a = torch.randn(size, size, device=device)
    return _rate(lambda n: [a @ a for _ in range(n)], device, 1.0) * 2 * size**3 / 1e9


def _rate(advance: Callable[[int], object], device: torch.device, seconds: float) -> float:
    """Return calls per second. The number of calls grows until they fill the time."""
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
    """Return the peak memory of the GPU, or of the process on a CPU, in GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "linux" else 2**30)
