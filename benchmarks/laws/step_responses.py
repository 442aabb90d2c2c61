"""Compare laws by their step response in real trainings.

    python benchmarks/laws/step_responses.py --out laws

Eight trainings run under every law with every seed:

- the small model of the README, and the same with its reconstruction in other units;
- presets in sizes for a CPU: `shapes2d-quick`, `text-quick`, CIFAR-10 and Penn Treebank;
- models of other libraries: pythae's `VAE` on 2D Shapes and diffusers' `AutoencoderKL` on CIFAR-10.

The table is printed. `runs.csv` gets one line per run and `traces.png` the figure. For a custom
training:

    compare_laws({"mine": Task(target, train)}, LAWS, seeds=range(5), folder=Path("laws"))

where `train` takes the (law, seed) of every run and yields their `Trace`s: the KL and the weight of
every step.

The other libraries need `pip install pythae diffusers`. CIFAR-10 and Penn Treebank are read from
`$CONTROLVAE_DATA`. Everything takes about two hours of one core. `--tasks small text-quick` selects
trainings. `--traces FOLDER` saves traces and resumes an interrupted run. `--tasks cifar10-128
ptb-paper` are for a GPU: the paper's networks, all runs trained together.
"""

import argparse
import csv
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import controlvae as cv
from controlvae.lab.config import CIFAR10, Experiment, Shapes2D, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.select import make_engine
from controlvae.laws import Law

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "examples")]
from common import SmallVAE, Trace, binary_vectors
from step_responses_report import RunId, StepResponse, draw_traces, format_table, measure_response

Train = Callable[[Sequence[tuple[Law, int]]], Iterator[Trace]]


class Task(NamedTuple):
    """A training and the target of its KL."""

    target: float
    train: Train
    # Steps of a running mean: the KL of a batch varies by more than the bands are wide.
    window: int = 50


LAWS: dict[str, Callable[[float], Law]] = {
    "PI, ki 1e-3": lambda v: cv.PI(v, beta_max=float("inf")),
    "PI, ki 1e-4": lambda v: cv.PI(v, ki=1e-4, beta_max=float("inf")),
    "Lagrange, 1e-3": lambda v: cv.LagrangeMultiplier(v, alpha=1e-3),
    "Lagrange, 1e-4": lambda v: cv.LagrangeMultiplier(v, alpha=1e-4),
    "Auto": cv.Auto,
}


def train_small(law: Law, seed: int, scale: float = 1.0, steps: int = 3_000) -> Trace:
    """Train the README's model, with its reconstruction multiplied by `scale`.

    Args:
        law: Law of the weight.
        seed: Seed of data, weights and batches.
        scale: Factor of the reconstruction.
        steps: Training steps.
    """
    torch.manual_seed(seed)
    data, model = torch.from_numpy(binary_vectors(seed)), SmallVAE()
    batches = (data[torch.randint(len(data), (128,))] for _ in range(steps))

    def losses(x: Tensor) -> tuple[Tensor, Tensor]:
        reconstruction, kl = model(x)
        return scale * reconstruction, kl

    return _run_loop(law, losses, batches, torch.optim.Adam(model.parameters(), lr=0.01))


def one_by_one(train: Callable[[Law, int], Trace]) -> Train:
    """Return a training that runs its (law, seed) pairs one after the other."""
    return lambda runs: (train(law, seed) for law, seed in runs)


def small_preset(name: str, steps: int, data: CIFAR10 | None = None, **changes: Any) -> Train:
    """Return a training of a preset in batches of 32.

    Args:
        name: Preset.
        steps: Training steps.
        data: Data to use instead of the preset's.
        changes: Changed fields of the network.
    """

    def train(law: Law, seed: int) -> Trace:
        experiment = preset(name)
        experiment = replace(
            experiment,
            control=law,
            data=data or experiment.data,
            model=replace(experiment.model, **changes),
            training=replace(experiment.training, seed=seed, steps=steps, batch=32),
        )
        engine = EagerEngine([experiment], _load(experiment.data), torch.device("cpu"))
        return _read_trace(engine.advance(steps)[:, 0], experiment)

    return one_by_one(train)


def full_preset(name: str, steps: int) -> Train:
    """Return a training of an unchanged preset, with all runs in one engine."""

    def train(runs: Sequence[tuple[Law, int]]) -> Iterator[Trace]:
        base = preset(name)
        experiments = [
            replace(base, control=law, training=replace(base.training, seed=seed, steps=steps))
            for law, seed in runs
        ]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        engine = make_engine(experiments, _load(base.data).to(device), device)
        rows = torch.cat([engine.advance(100) for _ in range(steps // 100)])
        for number, experiment in enumerate(experiments):
            yield _read_trace(rows[:, number], experiment)

    return train


def _read_trace(rows: Tensor, experiment: Experiment) -> Trace:
    """Return the trace of one model from its rows of measurements."""
    columns = row_columns(experiment)
    kl, beta = (rows[:, columns.index(name)].tolist() for name in ("kl", "beta"))
    return Trace(experiment.control.target, kl, beta)


def train_pythae(law: Law, seed: int, steps: int = 1_500) -> Trace:
    """Train pythae's VAE with its default encoder and decoder on 2D Shapes."""
    from pythae.models import VAE, VAEConfig

    torch.manual_seed(seed)
    model = VAE(VAEConfig(input_dim=(1, 32, 32), latent_dim=10, reconstruction_loss="bce"))

    def losses(x: Tensor) -> tuple[Tensor, Tensor]:
        output = model({"data": x})
        return output.recon_loss, output.reg_loss

    batches = _image_batches(Shapes2D(32, images=20_000), 32, steps)
    return _run_loop(law, losses, batches, torch.optim.Adam(model.parameters(), lr=1e-3))


def train_diffusers(law: Law, seed: int, steps: int = 1_000) -> Trace:
    """Train a small `AutoencoderKL` of diffusers on 2,000 images of CIFAR-10 at half size.

    The reconstruction is the sum of squared errors of images in [-1, 1].
    """
    from diffusers import AutoencoderKL

    torch.manual_seed(seed)
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
        sample_size=16,
    )

    def losses(x: Tensor) -> tuple[Tensor, Tensor]:
        x = 2 * F.avg_pool2d(x, 2) - 1
        posterior = model.encode(x).latent_dist
        error = model.decode(posterior.sample()).sample - x
        return error.square().sum() / len(x), posterior.kl().mean()

    batches = _image_batches(CIFAR10(32, images=2_000), 16, steps)
    return _run_loop(law, losses, batches, torch.optim.Adam(model.parameters(), lr=1e-3))


def _run_loop(
    law: Law,
    losses: Callable[[Tensor], tuple[Tensor, Tensor]],
    batches: Iterator[Tensor],
    optimiser: torch.optim.Adam,
) -> Trace:
    control, trace = cv.Controller(law), Trace(law.target, [], [])
    for x in batches:
        recon, kl = losses(x)
        beta = control.step(kl.item())
        optimiser.zero_grad()
        (recon + beta * kl).backward()
        optimiser.step()
        trace.kl.append(kl.item())
        trace.beta.append(beta)
    return trace


_load = cache(load_dataset)


def _image_batches(data: Shapes2D | CIFAR10, batch: int, steps: int) -> Iterator[Tensor]:
    examples = _load(data)
    return (examples.batch(torch.randint(len(examples), (batch,))) for _ in range(steps))


TASKS = {
    "small": Task(8.0, one_by_one(train_small)),
    "small, recon / 1000": Task(
        8.0, one_by_one(lambda law, seed: train_small(law, seed, scale=1e-3))
    ),
    "shapes2d-quick": Task(
        18.0, small_preset("shapes2d-quick", 1_500, channels=(8, 16, 16), hidden=64)
    ),
    "pythae VAE": Task(18.0, one_by_one(train_pythae)),
    "AutoencoderKL": Task(27.0, one_by_one(train_diffusers)),
    "text-quick": Task(4.0, small_preset("text-quick", 1_200)),
    "cifar10": Task(25.0, small_preset("cifar10-control-145", 2_000, CIFAR10(32, images=20_000))),
    "ptb": Task(
        3.0,
        small_preset("ptb-control-3", 1_000, latents=32, width=64, blocks=1, heads=4, inner=128),
        window=200,
    ),
}
GPU_TASKS = {
    "cifar10-128": Task(145.0, full_preset("cifar10-control-145", 5_000)),
    "ptb-paper": Task(3.0, full_preset("ptb-control-3", 5_000), window=200),
}


def compare_laws(
    tasks: Mapping[str, Task],
    laws: Mapping[str, Callable[[float], Law]],
    seeds: Sequence[int],
    folder: Path,
    saved: Path | None = None,
) -> list[StepResponse]:
    """Train every task under every law with every seed, and write `runs.csv` and `traces.png`.

    Args:
        tasks: Trainings by name.
        laws: Laws by name, as functions of the target.
        seeds: Seeds of each combination.
        folder: Folder of the results.
        saved: Folder of traces; one that exists is not trained again.
    """
    traces: dict[RunId, Trace] = {}
    for name, task in tasks.items():
        runs = [RunId(name, law, seed) for seed in seeds for law in laws]
        traces |= {run: trace for run in runs if (trace := _load_trace(saved, run))}
        missing = [run for run in runs if run not in traces]
        pairs = [(laws[run.law](task.target), run.seed) for run in missing]
        trained = task.train(pairs) if missing else iter(())
        for run, trace in zip(missing, trained, strict=True):
            traces[run] = trace
            _save_trace(saved, run, trace)
            print(*measure_response(run, *trace, task.window), sep="\t", flush=True)
    responses = [
        measure_response(run, *trace, tasks[run.task].window) for run, trace in traces.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "runs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([StepResponse._fields, *responses])
    windows = {name: task.window for name, task in tasks.items()}
    draw_traces(traces, windows, folder / "traces.png")
    return responses


def _trace_file(saved: Path, run: RunId) -> Path:
    return saved / ("-".join(map(str, run)).replace("/", ":") + ".npz")


def _load_trace(saved: Path | None, run: RunId) -> Trace | None:
    if saved is None or not _trace_file(saved, run).is_file():
        return None
    with np.load(_trace_file(saved, run)) as arrays:
        return Trace(arrays["target"].item(), arrays["kl"].tolist(), arrays["beta"].tolist())


def _save_trace(saved: Path | None, run: RunId, trace: Trace) -> None:
    """Save a trace under a temporary name first, so that no truncated file is read later."""
    if saved is not None:
        saved.mkdir(parents=True, exist_ok=True)
        path = _trace_file(saved, run)
        temporary = path.with_suffix(".part.npz")
        np.savez(temporary, **trace._asdict())
        temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the results and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = TASKS | GPU_TASKS
    choices = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument(
        "--tasks", choices=tasks, default=list(TASKS), help="; ".join(tasks), **choices
    )
    parser.add_argument("--laws", choices=LAWS, default=list(LAWS), help="; ".join(LAWS), **choices)
    parser.add_argument("--seeds", type=int, default=5, help="number (default %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("laws"), help="folder of results (default %(default)s)"
    )
    parser.add_argument(
        "--traces", "--kept", type=Path, help="folder of traces; existing ones are not trained"
    )
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", cv.TuningWarning)
    torch.set_num_threads(1)
    responses = compare_laws(
        {name: tasks[name] for name in options.tasks},
        {name: LAWS[name] for name in options.laws},
        range(1, options.seeds + 1),
        options.out,
        options.traces,
    )
    print(*format_table(responses), sep="\n")


if __name__ == "__main__":
    main()
