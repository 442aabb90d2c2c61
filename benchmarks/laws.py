"""Laws judged by their step response on real training: `python examples/judge_laws.py --out judged`.

Eight trainings: the README's small model, once more with its reconstruction in other units; presets of ours in sizes
for a CPU: `shapes2d-quick`, `text-quick`, the photographs of CIFAR-10 and the sentences of Penn Treebank; and models of
others: pythae's `VAE` on 2D Shapes and diffusers' `AutoencoderKL` on CIFAR-10. Each runs under every law with every
seed. A table goes to the terminal, a line per run to `runs.csv`, traces to `traces.png`. For a training of your own:

    judge({"mine": Task(target, train)}, LAWS, seeds=range(5), folder=Path("judged"))

where `train` takes the (law, seed) of every run and yields their `Trace`s, the KL and the weight of every step.

Models of others want `pip install pythae diffusers`; CIFAR-10 and Penn Treebank are read from `$CONTROLVAE_DATA`. All
of it takes about two hours of one core. `--tasks small text-quick` picks some, and `--kept FOLDER` goes on where an
interrupted run stopped. `--tasks cifar10-128 ptb-paper` are for a GPU: the paper's networks, all runs side by side.
"""

import argparse
import csv
import statistics
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
from controlvae.lab.config import CIFAR10, Shapes2D, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.select import make_engine
from controlvae.laws import Law

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from common import SmallVAE, Trace, binary_vectors

Of = tuple[str, str, int]  # whose trace it is: the training, the law, the seed
Train = Callable[[Sequence[tuple[Law, int]]], Iterator[Trace]]


class Task(NamedTuple):
    """A training and the KL to hold it at."""

    target: float
    train: Train
    window: int = (
        50  # steps in a running mean: a batch's KL scatters by more than the bands are wide
    )


LAWS: dict[str, Callable[[float], Law]] = {
    "PI, ki 1e-3": lambda v: cv.PI(v, beta_max=float("inf")),
    "PI, ki 1e-4": lambda v: cv.PI(v, ki=1e-4, beta_max=float("inf")),
    "Lagrange, 1e-3": lambda v: cv.LagrangeMultiplier(v, alpha=1e-3),
    "Lagrange, 1e-4": lambda v: cv.LagrangeMultiplier(v, alpha=1e-4),
    "Auto": cv.Auto,
}


# Trainings


def small(law: Law, seed: int, scale: float = 1.0, steps: int = 3_000) -> Trace:
    """The README's model, with its reconstruction in other units where `scale` is not one."""
    torch.manual_seed(seed)
    data, model = torch.from_numpy(binary_vectors(seed)), SmallVAE()
    batches = (data[torch.randint(len(data), (128,))] for _ in range(steps))
    scaled = lambda x: (scale * (terms := model(x))[0], terms[1])  # noqa: E731
    return _loop(law, scaled, batches, torch.optim.Adam(model.parameters(), lr=0.01))


def one_by_one(train: Callable[[Law, int], Trace]) -> Train:
    return lambda runs: (train(law, seed) for law, seed in runs)


def ours(name: str, steps: int, data: CIFAR10 | None = None, **changes: Any) -> Train:
    """A preset of ours in batches of 32, on other data where they are given; `changes` are those of its network."""

    def train(law: Law, seed: int) -> Trace:
        experiment = preset(name)
        experiment = replace(
            experiment,
            control=law,
            data=data or experiment.data,
            model=replace(experiment.model, **changes),
            training=replace(experiment.training, seed=seed, steps=steps, batch=32),
        )
        rows = EagerEngine([experiment], _examples(experiment.data), torch.device("cpu")).advance(
            steps
        )[:, 0]
        kl, beta = (
            rows[:, row_columns(experiment).index(column)].tolist() for column in ("kl", "beta")
        )
        return Trace(law.target, kl, beta)

    return one_by_one(train)


def group_compatible(name: str, steps: int) -> Train:
    """A preset as it is, all its runs at once."""

    def train(runs: Sequence[tuple[Law, int]]) -> Iterator[Trace]:
        like = preset(name)
        experiments = [
            replace(like, control=law, training=replace(like.training, seed=seed, steps=steps))
            for law, seed in runs
        ]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        engine = make_engine(experiments, _examples(like.data).to(device), device)
        rows = torch.cat([engine.advance(100) for _ in range(steps // 100)])
        for number, (law, _) in enumerate(runs):
            names = row_columns(experiments[number])
            yield Trace(
                law.target,
                *(rows[:, number, names.index(name)].tolist() for name in ("kl", "beta")),
            )

    return train


def pythae_vae(law: Law, seed: int, steps: int = 1_500) -> Trace:
    """pythae's VAE with the encoder and decoder it brings along, on 2D Shapes."""
    from pythae.models import VAE, VAEConfig

    torch.manual_seed(seed)
    model = VAE(VAEConfig(input_dim=(1, 32, 32), latent_dim=10, reconstruction_loss="bce"))

    def losses(x: Tensor) -> tuple[Tensor, Tensor]:
        output = model({"data": x})
        return output.recon_loss, output.reg_loss

    batches = _pictures(Shapes2D(32, images=20_000), 32, steps)
    return _loop(law, losses, batches, torch.optim.Adam(model.parameters(), lr=1e-3))


def diffusers_autoencoder(law: Law, seed: int, steps: int = 1_000) -> Trace:
    """diffusers' AutoencoderKL, small, on 2,000 photographs made half as large; sums of squares in [-1, 1]."""
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
        return (model.decode(posterior.sample()).sample - x).square().sum() / len(
            x
        ), posterior.kl().mean()

    batches = _pictures(CIFAR10(32, images=2_000), 16, steps)
    return _loop(law, losses, batches, torch.optim.Adam(model.parameters(), lr=1e-3))


def _loop(
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


_examples = cache(load_dataset)


def _pictures(data: Shapes2D | CIFAR10, batch: int, steps: int) -> Iterator[Tensor]:
    examples = _examples(data)
    return (examples.batch(torch.randint(len(examples), (batch,))) for _ in range(steps))


TASKS = {
    "small": Task(8.0, one_by_one(small)),
    "small, recon / 1000": Task(8.0, one_by_one(lambda law, seed: small(law, seed, scale=1e-3))),
    "shapes2d-quick": Task(18.0, ours("shapes2d-quick", 1_500, channels=(8, 16, 16), hidden=64)),
    "pythae VAE": Task(18.0, one_by_one(pythae_vae)),
    "AutoencoderKL": Task(27.0, one_by_one(diffusers_autoencoder)),
    "text-quick": Task(4.0, ours("text-quick", 1_200)),
    "cifar10": Task(25.0, ours("cifar10-control-145", 2_000, CIFAR10(32, images=20_000))),
    "ptb": Task(
        3.0,
        ours("ptb-control-3", 1_000, latents=32, width=64, blocks=1, heads=4, inner=128),
        window=200,
    ),
}
FOR_A_GPU = {
    "cifar10-128": Task(145.0, group_compatible("cifar10-control-145", 5_000)),
    "ptb-paper": Task(3.0, group_compatible("ptb-control-3", 5_000), window=200),
}


# Judgement


class Verdict(NamedTuple):
    """One run. Times in steps, None where it does not settle; the rest as shares of the target or of the weight."""

    task: str
    law: str
    seed: int
    steps: int
    settled_to_5: float | None
    settled_to_2: float | None
    overshoot: float
    steady_state_error: float  # of the last tenth
    beta_noise: float  # sd around a straight line over the last tenth


def running_mean(values: Sequence[float], window: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each `window` steps in a row, and the last of them."""
    return np.arange(window, len(values) + 1), np.convolve(
        values, np.full(window, 1 / window), mode="valid"
    )


def verdict(task: str, law: str, seed: int, trace: Trace, window: int) -> Verdict:
    """What running means say; an untrained model has no KL, so a response starts from zero."""
    steps, means = running_mean(trace.kl, window)
    wide, narrow = (
        cv.metrics.step_response(means, trace.target, steps=steps, start=0.0, band=band)
        for band in (0.05, 0.02)
    )
    last = np.array(trace.beta[-len(trace.beta) // 10 :])
    time = np.arange(len(last))
    noise = (last - np.polyval(np.polyfit(time, last, 1), time)).std() / last.mean()
    return Verdict(
        task,
        law,
        seed,
        len(trace.kl),
        wide.settling_time,
        narrow.settling_time,
        wide.overshoot,
        wide.steady_state_error,
        float(noise),
    )


def judge(
    tasks: Mapping[str, Task],
    laws: Mapping[str, Callable[[float], Law]],
    seeds: Sequence[int],
    folder: Path,
    kept: Path | None = None,
) -> list[Verdict]:
    """Trains every task under every law with every seed. Traces in the folder `kept` are not trained again."""
    traces: dict[Of, Trace] = {}
    for name, task in tasks.items():
        all_of = [(name, law, seed) for seed in seeds for law in laws]
        traces |= {of: trace for of in all_of if (trace := _found(kept, of))}
        missing = [of for of in all_of if of not in traces]
        trained = (
            task.train([(laws[law](task.target), seed) for _, law, seed in missing])
            if missing
            else iter(())
        )
        for of, trace in zip(missing, trained, strict=True):
            traces[of] = trace
            _keep(kept, of, trace)
            print(*verdict(*of, trace, task.window), sep="\t", flush=True)
    verdicts = [verdict(*of, trace, tasks[of[0]].window) for of, trace in traces.items()]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([Verdict._fields, *verdicts])
    draw(traces, tasks, folder / "traces.png")
    return verdicts


def _file(kept: Path, of: Of) -> Path:
    return kept / ("-".join(map(str, of)).replace("/", ":") + ".npz")


def _found(kept: Path | None, of: Of) -> Trace | None:
    if kept is None or not _file(kept, of).is_file():
        return None
    with np.load(_file(kept, of)) as saved:
        return Trace(saved["target"].item(), saved["kl"].tolist(), saved["beta"].tolist())


def _keep(kept: Path | None, of: Of, trace: Trace) -> None:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        whole = _file(kept, of)
        part = whole.with_suffix(
            ".part.npz"
        )  # a kill in mid-writing leaves nothing that looks whole
        np.savez(part, **trace._asdict())
        part.replace(whole)


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Medians over seeds, in Markdown."""
    yield "| training | law | within 5 % from step | within 2 % from step | overshoot | steady-state error | β noise |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for task, law in dict.fromkeys((v.task, v.law) for v in verdicts):
        runs = [v for v in verdicts if (v.task, v.law) == (task, law)]
        overshoot, noise = (
            statistics.median(getattr(v, name) for v in runs)
            for name in ("overshoot", "beta_noise")
        )
        worst = max((v.steady_state_error for v in runs), key=abs)
        middle = statistics.median(abs(v.steady_state_error) for v in runs)
        yield (
            f"| {task} | {law} | {_median(runs, 'settled_to_5')} | {_median(runs, 'settled_to_2')} | {overshoot:.0%} "
            f"| {middle:.1%}, worst {worst:+.1%} | {noise:.1%} |"
        )


def _median(runs: Sequence[Verdict], name: str) -> str:
    """A run that has not settled counts as longer than it was."""
    times = [getattr(run, name) for run in runs]
    middle = statistics.median(
        run.steps + 1 if time is None else time for run, time in zip(runs, times, strict=True)
    )
    settled = sum(time is not None for time in times)
    return (f"> {runs[0].steps:,}" if middle > runs[0].steps else f"{middle:,.0f}") + (
        "" if settled == len(runs) else f" ({settled} of {len(runs)})"
    )


def draw(traces: Mapping[Of, Trace], tasks: Mapping[str, Task], path: Path) -> None:
    """KL above, weight below, four trainings in a row; a thin line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    laws, wide, tall = (
        list(dict.fromkeys(law for _, law, _ in traces)),
        min(len(tasks), 4),
        -(-len(tasks) // 4),
    )
    figure, axes = plt.subplots(
        2 * tall,
        wide,
        squeeze=False,
        figsize=(3.4 * wide, 4.8 * tall),
        layout="constrained",
        height_ratios=[3, 2] * tall,
    )
    pairs = {task: axes[2 * (k // 4) : 2 * (k // 4) + 2, k % 4] for k, task in enumerate(tasks)}
    for blank in axes[-2:, (len(tasks) - 1) % 4 + 1 :].flatten():
        blank.axis("off")
    for (task, law, _), trace in traces.items():
        above, below = pairs[task]
        number = laws.index(law)
        steps, means = running_mean(trace.kl, tasks[task].window)
        above.semilogx(steps, means / trace.target, f"C{number}", linewidth=0.7)
        below.loglog(
            np.arange(1, len(trace.beta) + 1),
            np.maximum(trace.beta, 1e-4),
            f"C{number}",
            linewidth=0.7,
        )
        above.set(title=f"{task}, {trace.target:g} nats", ylim=(0, 2.5), xlim=(10, len(trace.kl)))
        above.axhline(1.0, color="black", linestyle="--", linewidth=0.7)
        below.set(xlabel="step", xlim=(10, len(trace.kl)))
    for above, below in zip(axes[::2, 0], axes[1::2, 0], strict=True):
        above.set(ylabel="KL / target, running means")
        below.set(ylabel="β")
    lines = [plt.Line2D([], [], color=f"C{number}") for number in range(len(laws))]
    figure.legend(lines, laws, loc="outside lower center", ncols=len(laws))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = TASKS | FOR_A_GPU
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=every,
        default=list(TASKS),
        metavar="TASK",
        help="; ".join(every),
    )
    parser.add_argument(
        "--laws", nargs="+", choices=LAWS, default=list(LAWS), metavar="LAW", help="; ".join(LAWS)
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many (default %(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("judged"),
        help="the folder of CSV and figure (default %(default)s)",
    )
    parser.add_argument(
        "--kept", type=Path, help="a folder of traces: one that is there is not trained again"
    )
    options = parser.parse_args(given)
    warnings.simplefilter("ignore", cv.TuningWarning)
    torch.set_num_threads(1)
    picked = (
        {name: every[name] for name in options.tasks},
        {name: LAWS[name] for name in options.laws},
    )
    print(*table(judge(*picked, range(1, options.seeds + 1), options.out, options.kept)), sep="\n")


if __name__ == "__main__":
    main()
