"""Time what several ranks add to a training step, and count what they communicate.

    python benchmarks/ranks.py                    # two and four gloo ranks on this CPU
    python benchmarks/ranks.py --device cuda      # one rank, and two gloo ranks on one GPU

The network is that of the paper's 2D Shapes, batch 64. A step of one process is compared with a
step under DistributedDataParallel. For the controller, the time inside its all-reduce is measured,
which is mostly the time that a rank waits for the slower ones, and that of the same all-reduce
alone. For DDP, it is what a step costs more than the same step without communication (`no_sync`),
because its all-reduces overlap with the backward pass. Modes take turns in rounds, and times are
medians over rounds. On a CPU every rank has one thread. The largest difference of the KL over the
first steps says whether ranks train the same model.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from controlvae.lab.config import override, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.precision import product_precision

SETTINGS = ["data.images=1024", "training.batch=64", "training.precision=fp32"]
PRESET, CHECKED_STEPS = "shapes2d-control-16", 5


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


def make_engine(device: torch.device, rank: int, size: int, wrapped: bool) -> EagerEngine:
    """Return an engine of one rank. `wrapped` connects one that is alone too."""
    experiment = override(preset(PRESET), SETTINGS)
    engine = EagerEngine([experiment], load_dataset(experiment.data), device, (rank, size))
    if wrapped and size == 1:
        engine.trainers[0].connect_ranks()
    return engine


def time_steps(engine: EagerEngine, steps: int, context: Any = None) -> float:
    """Return seconds per step."""
    with context or nullcontext():
        before = time.perf_counter()
        engine.advance(steps)  # reads measurements, which waits for the device
        return (time.perf_counter() - before) / steps


def compare_one_rank(device: torch.device, steps: int, rounds: int) -> dict[str, float]:
    """Return milliseconds per step without DDP and with DDP of one rank."""
    engines = {name: make_engine(device, 0, 1, name == "ddp") for name in ("none", "ddp")}
    for engine in engines.values():
        time_steps(engine, max(3, steps // 4))
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            times[name].append(time_steps(engine, steps))
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def measure_rank(device: torch.device, rank: int, size: int, steps: int, rounds: int) -> Any:
    """Return what a rank of several measures."""
    traffic = Traffic()
    engine = make_engine(device, rank, size, wrapped=True)
    wrapper = engine.trainers[0].losses
    wrapper.register_comm_hook(None, traffic.hook)  # type: ignore[attr-defined]
    first = engine.advance(CHECKED_STEPS)[:, 0, 1].tolist()
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
        "kl": first,
        "step": 1e3 * step,
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
        found.append(time.perf_counter() - before)
    return statistics.median(found)


def run_rank(rank: int, size: int, options: argparse.Namespace, folder: str) -> None:
    """Run one process of a group and save what it measures."""
    torch.set_num_threads(1)
    device = torch.device(options.device)
    store = f"file://{folder}/store-{size}"
    backend = "nccl" if device.type == "cuda" and size == 1 else "gloo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size)
    with product_precision("fp32", device):
        if size == 1:
            found: Any = compare_one_rank(device, options.steps, options.rounds)
            alone = make_engine(device, 0, 1, wrapped=False)
            found["kl"] = alone.advance(CHECKED_STEPS)[:, 0, 1].tolist()
        else:
            found = measure_rank(device, rank, size, options.steps, options.rounds)
        torch.save(found, Path(folder, f"{size}-{rank}.pt"))
    os._exit(0)  # threads of the group may abort an interpreter that is being torn down


def main() -> None:
    """Measure all groups and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="*", help="sizes of the groups")
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    options.steps = options.steps or (100 if is_gpu else 5)
    sizes = options.ranks or ([2] if is_gpu else [2, 4])
    name = torch.cuda.get_device_name() if is_gpu else f"CPU, {os.cpu_count()} cores"
    print(f"{name}; torch {torch.__version__}; {PRESET}, batch 64, fp32, eager engine\n")
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, *sizes):
            mp.spawn(run_rank, (size, options, folder), nprocs=size)
        found = {s: torch.load(Path(folder, f"{s}-0.pt"), weights_only=True) for s in (1, *sizes)}
    alone = found[1]
    extra = alone["ddp"] / alone["none"] - 1
    print("| one rank | ms per step |\n| --- | ---: |")
    print(f"| no DDP | {alone['none']:.3f} |\n| DDP | {alone['ddp']:.3f} ({extra:+.1%}) |\n")
    heads = "| ranks | ms per step | controller | alone | of the step | DDP | of the step "
    print(heads + "| KL differs by |\n|" + " ---: |" * 8)
    for size in sizes:
        row = found[size]
        apart = max(abs(a - b) / abs(a) for a, b in zip(alone["kl"], row["kl"], strict=True))
        print(
            f"| {size} | {row['step']:.1f} | {row['controller_bytes']:,} bytes "
            f"| {row['controller_latency']:.0f} us | {row['controller_share']:.1%} "
            f"| {row['gradient_bytes']:,} bytes "
            f"| {row['gradient_share']:.1%} | {apart:.1e} |"
        )


if __name__ == "__main__":
    main()
