"""Compare ranks with one process, step by step and through the command line.

    python benchmarks/ranks_agree.py                    # two gloo ranks on this CPU
    python benchmarks/ranks_agree.py --device cuda      # two gloo ranks that share one GPU

The network of 2D Shapes is trained in float64 and in float32, and β is compared between ranks to
the last bit. Then `controlvae train --devices` trains a model with batch norm and dropout in
float64, and its log is compared with that of one process. The exit status is 1 if a difference is
larger than its tolerance.

Sums are split differently on several ranks, and training amplifies their rounding. In float64 this
stays below 1e-9. In float32 it does not, so one process is trained again from weights that differ in
the last bit. Ranks may differ from one process ten times as much as these two processes do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from controlvae.lab.config import override, preset
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.precision import product_precision

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ["data.images=1024", "training.precision=fp32", "control=Auto(4.0)"]
KL, BETA = 1, 3
FLOAT64_TOLERANCE = 1e-9
# Ranks differ from one process at most this many times as much as a process with nudged weights.
FLOAT32_TOLERANCE = 10.0
DTYPES = ("float64", "float32")
COMMAND_STEPS, COMMAND_TOLERANCE = 600, 1e-9
MODEL = f"""
import torch
from torch import nn
import controlvae as cv
from controlvae import lab

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(),
                                  nn.Linear(64, 8))
        self.up = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.1), nn.Tanh(), nn.Linear(64, 64))
        self.double()

    def encode(self, x):
        return self.down(x).chunk(2, dim=1)

    def decode(self, z):
        return self.up(z)

torch.manual_seed(0)
rows = (torch.rand(1_000, 64) < torch.rand(10, 64).repeat(100, 1)).double()
experiment = lab.define(
    VAE, rows, law=cv.Auto(3.0), steps={COMMAND_STEPS}, batch=33, log_every=20, precision="fp32"
)
"""


def nudge_weights(engine: EagerEngine) -> None:
    """Change every weight by about one rounding error."""
    generator = torch.Generator().manual_seed(0)
    for parameter in engine.trainers[0].model.parameters():
        signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter) * 2 - 1
        parameter.data.mul_(1 + signs * torch.finfo(parameter.dtype).eps)


def train_rank(
    rank: int, size: int, options: argparse.Namespace, folder: str, nudged: bool = False
) -> None:
    """Train the network on one rank of a group, and save the measurements of every step.

    Args:
        rank: Number of the process.
        size: Number of processes.
        options: Options of the command line.
        folder: Folder of the results.
        nudged: Start from weights that differ in the last bit.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    group = "nudged" if nudged else str(size)
    store = f"file://{folder}/store-{group}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    decode = BinaryImages.decode
    for name in DTYPES:
        dtype = getattr(torch, name)
        torch.set_default_dtype(dtype)
        BinaryImages.decode = lambda self, rows, to=dtype: decode(self, rows).to(to)  # type: ignore[method-assign,misc]
        experiment = override(preset("shapes2d-control-16"), SETTINGS)
        device = torch.device(options.device)
        with product_precision("fp32", device):
            engine = EagerEngine([experiment], load_dataset(experiment.data), device, (rank, size))
            if nudged:
                nudge_weights(engine)
            measurements = engine.advance(options.steps)[:, 0]
            torch.save(measurements, Path(folder, f"{name}-{group}-{rank}"))
    os._exit(0)  # threads of the group may abort an interpreter that is being torn down


def compare_steps(options: argparse.Namespace) -> bool:
    """Compare a group with one process. Returns True if they agree."""
    print("| numbers | ranks | steps | KL differs by | β differs by | tolerance | β on ranks |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    agree = True
    with tempfile.TemporaryDirectory() as folder:
        for size, nudged in ((1, False), (1, True), (options.ranks, False)):
            mp.spawn(train_rank, (size, options, folder, nudged), nprocs=size)
        for name in DTYPES:
            alone, again = (load_measurements(folder, name, group) for group in ("1-0", "nudged-0"))
            ranks = [
                load_measurements(folder, name, f"{options.ranks}-{rank}")
                for rank in range(options.ranks)
            ]
            tolerance = FLOAT64_TOLERANCE
            if name == "float32":
                nudge = max(relative_difference(alone, again, column) for column in (KL, BETA))
                tolerance = FLOAT32_TOLERANCE * nudge
            apart = [relative_difference(alone, ranks[0], column) for column in (KL, BETA)]
            equal = all(other[:, BETA].equal(ranks[0][:, BETA]) for other in ranks)
            print(
                f"| {name} | {options.ranks} | {options.steps} | {apart[0]:.1e} | {apart[1]:.1e} "
                f"| {tolerance:.0e} | {'equal bits' if equal else 'DIFFERENT'} |",
                flush=True,
            )
            agree &= equal and max(apart) < tolerance
    return agree


def load_measurements(folder: str, dtype: str, process: str) -> Tensor:
    """Return the measurements of a process, (steps, columns).

    Args:
        folder: Folder of the results.
        dtype: Number format of the training.
        process: Group and rank of the process.
    """
    measurements: Tensor = torch.load(Path(folder, f"{dtype}-{process}"), weights_only=True)
    return measurements


def relative_difference(one: Tensor, other: Tensor, column: int) -> float:
    """Return the largest relative difference of a column of measurements.

    Args:
        one: Measurements, (steps, columns).
        other: Measurements of the same shape.
        column: Column to compare.
    """
    a, b = one[:, column], other[:, column]
    return float(((a - b).abs() / a.abs().clamp(min=1e-12)).max())


def compare_commands(options: argparse.Namespace) -> bool:
    """Compare logs of `controlvae train` with one and with several processes."""
    logs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vae.py").write_text(MODEL)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        started = []
        for size in (1, options.ranks):
            command = [sys.executable, "-m", "controlvae", "train", "vae.py"]
            command += ["--run", f"run-{size}", "--device", options.device]
            command += [] if size == 1 else ["--devices", str(size)]
            started.append(subprocess.Popen(command, cwd=folder, env=environment))
        if any(process.wait() for process in started):
            print("controlvae train failed")
            return False
        for size in (1, options.ranks):
            lines = (folder / f"run-{size}" / "log.jsonl").read_text().splitlines()
            logs.append([json.loads(line) for line in lines])
    pairs = list(zip(*logs, strict=True))
    worst = {
        key: max(abs(a[key] - b[key]) / abs(a[key]) for a, b in pairs) for key in ("kl", "beta")
    }
    print(
        f"controlvae train, 1 and {options.ranks} processes, float64, {COMMAND_STEPS} steps, "
        f"{len(pairs)} log lines: KL differs by {worst['kl']:.1e}, β by {worst['beta']:.1e}; "
        f"tolerance {COMMAND_TOLERANCE:.0e}"
    )
    return max(worst.values()) < COMMAND_TOLERANCE


def main() -> int:
    """Run both comparisons. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--skip-command", action="store_true", help="compare steps alone")
    options = parser.parse_args()
    agree = compare_steps(options)
    if not options.skip_command:
        agree &= compare_commands(options)
    print("all within tolerance" if agree else "NOT within tolerance")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
