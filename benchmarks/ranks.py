"""Time what several ranks add to a training step, and count what they communicate.

    python benchmarks/ranks.py                    # two and four gloo ranks on this CPU
    python benchmarks/ranks.py --device cuda --networks shapes photographs

The networks are those of the paper: 2D Shapes, batch 64, and photographs of 128x128 pixels with
batch norm, batch 100, on random images. On a GPU the groups are one rank, with NCCL, and two ranks
that share the GPU, with gloo.

A step of one process is compared with a step under DistributedDataParallel. For the controller, the
time inside its all-reduces is measured, which is mostly the time that a rank waits for the slower
ones, and that of the same all-reduce alone. Those of batch norm are counted with them. For DDP, it
is what a step costs more than the same step without communication (`no_sync`), because its
all-reduces overlap with the backward pass. Modes alternate in rounds, and times are medians over
rounds. On a CPU every rank has one thread. The largest difference of the KL over the first steps
says whether ranks train the same model, and β is compared between ranks to the last bit.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from controlvae.lab.config import Experiment, Images, override, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.precision import product_precision

NETWORKS = ("shapes", "photographs")
CHECKED_STEPS, KL, BETA = 5, 1, 3


class Traffic:
    """Bytes and seconds of the collective operations of a rank."""

    def __init__(self) -> None:
        self.controller_bytes = self.gradient_bytes = 0
        self.controller_seconds = 0.0

    def all_reduce(self, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """Count an all-reduce that is not DDP's, which does not wait."""
        if options.get("async_op"):
            return _all_reduce(tensor, *arguments, **options)
        before = time.perf_counter()
        done = _all_reduce(tensor, *arguments, **options)
        self.controller_seconds += time.perf_counter() - before
        self.controller_bytes += tensor.nbytes
        return done

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Count the gradients of a bucket and average them as DDP does."""
        self.gradient_bytes += bucket.buffer().nbytes
        return allreduce_hook(state, bucket)


_all_reduce = dist.all_reduce


def make_experiment(network: str, folder: str) -> Experiment:
    """Return the experiment of a network, whose images are in a folder or are generated."""
    if network == "shapes":
        return override(
            preset("shapes2d-control-16"), ["data.images=1024", "training.precision=fp32"]
        )
    photographs = replace(preset("cifar10-control-145"), data=Images(f"{folder}/photographs.npy"))
    unvalidated = ["training.validate_every=0", "training.validation=0"]
    return override(photographs, ["training.precision=fp32", *unvalidated])


def write_images(folder: str) -> None:
    """Write random images of 128x128 pixels."""
    images = np.random.default_rng(0).integers(0, 256, (400, 128, 128, 3), dtype=np.uint8)
    np.save(f"{folder}/photographs.npy", images)


def make_engine(
    experiment: Experiment, device: torch.device, ranks: tuple[int, int], wrapped: bool
) -> EagerEngine:
    """Return an engine of one rank. `wrapped` connects one that is alone too.

    Args:
        experiment: Experiment to train.
        device: Device to train on.
        ranks: Rank of this process and number of ranks.
        wrapped: Average gradients, even of one rank.
    """
    engine = EagerEngine([experiment], load_dataset(experiment.data), device, ranks)
    if wrapped and ranks[1] == 1:
        engine.trainers[0].connect_ranks()
    return engine


def time_steps(engine: EagerEngine, steps: int, context: Any = None) -> float:
    """Return seconds per step."""
    with context or nullcontext():
        before = time.perf_counter()
        engine.advance(steps)  # reads measurements, which waits for the device
        return (time.perf_counter() - before) / steps


def compare_one_rank(
    experiment: Experiment, device: torch.device, steps: int, rounds: int
) -> dict[str, float]:
    """Return milliseconds per step without DDP and with DDP of one rank.

    Args:
        experiment: Experiment to train.
        device: Device to train on.
        steps: Steps of a round.
        rounds: Rounds of each mode.
    """
    engines = {
        name: make_engine(experiment, device, (0, 1), name == "ddp") for name in ("none", "ddp")
    }
    for engine in engines.values():
        time_steps(engine, max(3, steps // 4))
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            times[name].append(time_steps(engine, steps))
    found = {name: 1e3 * statistics.median(each) for name, each in times.items()}
    ratios = [one / other for one, other in zip(times["ddp"], times["none"], strict=True)]
    return {
        **found,
        "lowest": min(ratios),
        "ratio": statistics.median(ratios),
        "highest": max(ratios),
    }


def measure_rank(
    experiment: Experiment, device: torch.device, ranks: tuple[int, int], steps: int, rounds: int
) -> Any:
    """Return what a rank of several measures.

    Args:
        experiment: Experiment to train.
        device: Device to train on.
        ranks: Rank of this process and number of ranks.
        steps: Steps of a round.
        rounds: Rounds of each mode.
    """
    traffic = Traffic()
    engine = make_engine(experiment, device, ranks, wrapped=True)
    wrapper = engine.trainers[0].losses
    wrapper.register_comm_hook(None, traffic.hook)  # type: ignore[attr-defined]
    first = engine.advance(CHECKED_STEPS)[:, 0]
    dist.all_reduce, traffic.gradient_bytes = traffic.all_reduce, 0
    synced: list[float] = []
    silent: list[float] = []
    controller: list[float] = []
    for _ in range(rounds):
        traffic.controller_seconds, traffic.controller_bytes, traffic.gradient_bytes = 0.0, 0, 0
        synced.append(time_steps(engine, steps))
        controller.append(traffic.controller_seconds / steps)
        sizes = traffic.controller_bytes // steps, traffic.gradient_bytes // steps
        silent.append(time_steps(engine, steps, wrapper.no_sync()))  # type: ignore[attr-defined]
    dist.all_reduce = _all_reduce
    latency = time_all_reduce(torch.zeros(sizes[0] // 8, dtype=torch.float64, device=device))
    step, controlled = statistics.median(synced), statistics.median(controller)
    return {
        "kl": first[:, KL].tolist(),
        "beta": first[:, BETA].tolist(),
        "step": 1e3 * step,
        "controller_time": 1e3 * controlled,
        "gradient_time": max(0.0, 1e3 * (step - statistics.median(silent))),
        "controller_bytes": sizes[0],
        "gradient_bytes": sizes[1],
        "controller_latency": 1e6 * latency,
        "controller_share": controlled / step,
        "gradient_share": max(0.0, 1 - statistics.median(silent) / step),
    }


def time_all_reduce(tensor: torch.Tensor, calls: int = 200) -> float:
    """Return the median of seconds per all-reduce, with ranks that wait for nothing else."""
    found = []
    for _ in range(calls):
        before = time.perf_counter()
        dist.all_reduce(tensor)
        if tensor.is_cuda:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - before)
    return statistics.median(found)


def run_rank(rank: int, size: int, options: argparse.Namespace, folder: str) -> None:
    """Run one process of a group and save what it measures.

    Args:
        rank: Number of the process.
        size: Number of processes.
        options: Options of the command line.
        folder: Folder of images and results.
    """
    torch.set_num_threads(1)
    device = torch.device(options.device)
    backend = "nccl" if device.type == "cuda" and size == 1 else "gloo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{folder}/store-{size}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size)
    for network in options.networks:
        experiment = make_experiment(network, folder)
        with product_precision("fp32", device):
            if size == 1:
                found: Any = compare_one_rank(experiment, device, options.steps, options.rounds)
                alone = make_engine(experiment, device, (0, 1), wrapped=False)
                found["kl"] = alone.advance(CHECKED_STEPS)[:, 0, KL].tolist()
            else:
                ranks = (rank, size)
                found = measure_rank(experiment, device, ranks, options.steps, options.rounds)
        torch.save(found, Path(folder, f"{network}-{size}-{rank}.pt"))
    os._exit(0)  # threads of the group may abort an interpreter that is being torn down


def print_alone(networks: list[str], folder: str) -> None:
    """Print the steps of one process, without DDP and with DDP of one rank."""
    print("| network | no DDP | DDP of one rank | difference | of single rounds |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for network in networks:
        row = torch.load(Path(folder, f"{network}-1-0.pt"), weights_only=True)
        rates = [f"{row[name]:.3f} ms ({1e3 / row[name]:.0f} steps/s)" for name in ("none", "ddp")]
        span = f"{row['lowest'] - 1:+.1%} to {row['highest'] - 1:+.1%}"
        print(f"| {network} | {rates[0]} | {rates[1]} | {row['ratio'] - 1:+.1%} | {span} |")
    print(flush=True)


def print_group(network: str, size: int, folder: str) -> None:
    """Print what a group of ranks communicates.

    Args:
        network: Name of the network.
        size: Number of ranks.
        folder: Folder of the results.
    """
    ranks = [
        torch.load(Path(folder, f"{network}-{size}-{rank}.pt"), weights_only=True)
        for rank in range(size)
    ]
    alone = torch.load(Path(folder, f"{network}-1-0.pt"), weights_only=True)
    row = ranks[0]
    apart = max(abs(a - b) / abs(a) for a, b in zip(alone["kl"], row["kl"], strict=True))
    equal = all(other["beta"] == row["beta"] for other in ranks)
    print(
        f"| {network} | {size} | {row['step']:.1f} | {row['controller_bytes']:,} bytes "
        f"| {row['controller_latency']:.0f} us | {row['controller_time']:.2f} ms "
        f"({row['controller_share']:.1%}) | {row['gradient_bytes']:,} bytes "
        f"| {row['gradient_time']:.2f} ms ({row['gradient_share']:.1%}) | {apart:.1e} "
        f"| {'yes' if equal else 'NO'} |",
        flush=True,
    )


def main() -> None:
    """Measure all groups and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--networks", nargs="+", default=["shapes"], choices=NETWORKS)
    parser.add_argument("--steps", type=int, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="*", help="sizes of the groups")
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    options.steps = options.steps or (100 if is_gpu else 5)
    sizes = options.ranks if options.ranks is not None else ([2] if is_gpu else [2, 4])
    name = torch.cuda.get_device_name() if is_gpu else f"CPU, {os.cpu_count()} cores"
    print(f"{name}; torch {torch.__version__}; fp32, eager engine\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder)
        mp.spawn(run_rank, (1, options, folder), nprocs=1)
        print_alone(options.networks, folder)
        print("| network | ranks | ms per step | controller | alone | of the step | DDP ", end="")
        print("| of the step | KL differs by | β equal on ranks |\n| --- |" + " ---: |" * 9)
        for size in sizes:
            mp.spawn(run_rank, (size, options, folder), nprocs=size)
            for network in options.networks:
                print_group(network, size, folder)


if __name__ == "__main__":
    main()
