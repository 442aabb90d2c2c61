"""Time the stacked engine's convolution kernels under other tiles, warps and pipeline stages.

    python benchmarks/tiles.py --models 1,5,15,25 --out tiles.csv

It needs a GPU. The layers are those of the paper's network on 2D Shapes, batch 64, `bf16`. Several
processes compile the kernels. A time is the median of five replays of a graph of ten launches.
`controlvae/lab/engines/stacked/tiling.py` holds the tiles that were chosen.
"""

import argparse
import csv
import itertools
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from controlvae.lab.engines.stacked import ops, tiling

BATCH = 64
BF16 = tiling.PrecisionPolicy("bf16")
GPU = torch.device("cuda")


class Workload(NamedTuple):
    """One operation of one layer, between maps of (size, size) and (2 size, 2 size) pixels."""

    operation: str
    large: int  # channels of the large map
    small: int  # channels of the small map
    size: int


OPERATIONS = ("conv", "conv_transpose", "conv_weight_grad")
LAYERS = ((1, 32, 32), (32, 32, 16), (32, 64, 8), (64, 64, 4))
WORKLOADS = [Workload(operation, *layer) for operation in OPERATIONS for layer in LAYERS]


def candidate_configs(workload: Workload) -> Iterator[dict[str, int]]:
    """Yield the tile configurations that are worth a try."""
    options = _tile_options(workload)
    for values in itertools.product(*options.values()):
        config = dict(zip(options, values, strict=True))
        if config.get("BLOCK_K") == 64 and config.get("TILES", 1) > 1:
            continue  # several tiles pay off only if the weights are loaded once
        yield config


def _tile_options(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return the values to try for each keyword argument of the launch."""
    wide_large = tiling.pad_channels(4 * workload.large)
    wide_small = tiling.pad_channels(4 * workload.small)
    all_taps = tiling.pad_channels(16 * workload.large)
    channels = tiling.channel_tile(workload.small)
    large_tiles = _distinct_capped((64, 128), wide_large)
    match workload.operation, tiling.is_narrow(workload.large):
        case "conv", _:
            return {
                "BLOCK_M": (64, 128, 256),
                "BLOCK_N": (channels,),
                "BLOCK_K": _distinct_capped((64, 128, 256), all_taps),
                "num_warps": (4, 8),
                "num_stages": (2, 3, 4),
            }
        case "conv_transpose", _:
            return {
                "BLOCK_M": (64, 128),
                "BLOCK_N": large_tiles,
                "BLOCK_K": (64, wide_small),
                "TILES": (1, 2, 4, 8),
                "num_warps": (4, 8),
                "num_stages": (2, 3),
            }
        case _, True:
            tiles = {"BLOCK_K": (64, 128, 256), "BLOCK_M": (all_taps,), "BLOCK_N": (channels,)}
        case _, False:
            small_tiles = _distinct_capped((64, 128), wide_small)
            tiles = {"BLOCK_K": (32, 64), "BLOCK_M": large_tiles, "BLOCK_N": small_tiles}
    return {**tiles, "num_warps": (4, 8), "num_stages": (3, 4)}


def _distinct_capped(values: tuple[int, ...], cap: int) -> tuple[int, ...]:
    return tuple(sorted({min(value, cap) for value in values}))


def candidate_splits(workload: Workload, config: dict[str, int], models: int) -> list[int]:
    """Return the split counts to try for a weight gradient; other operations have one.

    Args:
        workload: The operation and its layer.
        config: Tile configuration.
        models: Models in the stack.
    """
    if workload.operation != "conv_weight_grad":
        return [1]
    current = tiling.weight_grad_splits(workload.large, workload.small, models, BF16)
    if tiling.is_narrow(workload.large):
        return sorted({current, 64, 128, 256})
    rows = triton.cdiv(4 * workload.large, config["BLOCK_M"])
    columns = triton.cdiv(4 * workload.small, config["BLOCK_N"])
    fitting = (n for n in (2, 4, 8, 16, 32, 64) if 100 <= rows * columns * n * models <= 600)
    return sorted({current, *fitting})


class Case:
    """The tensors of a workload, and its launch with the gate of a backward pass."""

    def __init__(self, workload: Workload, models: int) -> None:
        _, large, small, size = self.workload = workload
        generator = torch.Generator(GPU).manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(models, *shape, device=GPU, generator=generator).bfloat16()

        self.large = draw(BATCH, 2 * size, 2 * size, large)
        self.small = draw(BATCH, size, size, small)
        self.weight = draw(4, 4, large, small)

    def allocate_grads(self, splits: int) -> tuple[Tensor, ...]:
        """Return buffers for the partial gradients of weight and bias, filled with NaN."""
        models, *sizes = self.weight.shape
        bias_splits = tiling.large_bias_splits(sizes[2], splits)
        shapes = ((models, splits, *sizes), (models, bias_splits, sizes[2]))
        return tuple(torch.full(shape, torch.nan, device=GPU) for shape in shapes)

    def launch(self, grads: tuple[Tensor, ...] = ()) -> Tensor:
        """Run the operation once and return its result."""
        match self.workload.operation:
            case "conv":
                return ops.conv(self.large, self.weight, BF16, gate=self.small)
            case "conv_transpose":
                return ops.conv_transpose(self.small, self.weight, BF16, gate=self.large)
        ops.conv_weight_grad(self.large, self.small, *grads, BF16, large_bias=True)
        return grads[0]

    def reference(self) -> Tensor:
        """Return the first model's result by torch's float32 convolutions."""
        large, small = (one[0].float().movedim(-1, 1) for one in (self.large, self.small))
        weight = self.weight[0].float().permute(3, 2, 0, 1)
        match self.workload.operation:
            case "conv":
                out = F.conv2d(large, weight, stride=2, padding=1) * (small > 0)
                return out.movedim(1, -1)
            case "conv_transpose":
                out = F.conv_transpose2d(small, weight, stride=2, padding=1) * (large > 0)
                return out.movedim(1, -1)
        grad = torch.nn.grad.conv2d_weight(large, weight.shape, small, stride=2, padding=1)
        return grad.permute(2, 3, 1, 0)

    def relative_error(self, grads: tuple[Tensor, ...]) -> float:
        """Return the largest relative error of the first model's results."""
        result, reference = self.launch(grads)[0].float(), self.reference()
        pairs = [(result, reference)]
        if grads:
            bias = (grads[1][0].sum(0), self.large[0].float().sum((0, 1, 2)))
            pairs = [(result.sum(0), reference), bias]
        return max(((got - right).norm() / right.norm()).item() for got, right in pairs)


def select_workloads(operations: str) -> list[Workload]:
    """Return the workloads of a comma-separated list of operations."""
    return [workload for workload in WORKLOADS if workload.operation in operations.split(",")]


def use_config(config: dict[str, int]) -> None:
    """Make every launch use this tile configuration."""
    tiling.tile_config = lambda *sizes: config  # type: ignore[assignment]


def compile_share(share: tuple[int, int, str]) -> None:
    """Compile every nth kernel into the cache on disk.

    The numbers of models and splits do not change a kernel, so one of each will do.
    """
    first, every, operations = share
    jobs = [
        (workload, config)
        for workload in select_workloads(operations)
        for config in candidate_configs(workload)
    ]
    for workload, config in jobs[first::every]:
        use_config(config)
        case = Case(workload, 1)
        with suppress(triton.runtime.errors.OutOfResources):
            case.launch(case.allocate_grads(16))


def time_launch(case: Case, grads: tuple[Tensor, ...]) -> float:
    """Return microseconds per launch."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            case.launch(grads)
    times = []
    for _ in range(6):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 100)
    return statistics.median(times[1:])


def benchmark(workload: Workload, models: int, current: dict[str, int]) -> list[dict[str, Any]]:
    """Return one row per tile configuration and split count, fastest first.

    Args:
        workload: The operation and its layer.
        models: Models in the stack.
        current: The engine's own configuration.
    """
    case, rows = Case(workload, models), []
    has_splits = workload.operation == "conv_weight_grad"
    use_config(current)  # the number of splits depends on the tiles
    current_splits = tiling.weight_grad_splits(workload.large, workload.small, models, BF16)
    for config in [current, *candidate_configs(workload)]:
        use_config(config)
        for splits in candidate_splits(workload, config, models):
            grads = case.allocate_grads(splits) if has_splits else ()
            try:
                error = case.relative_error(grads)
            except triton.runtime.errors.OutOfResources:
                continue
            if not error < 0.01:
                print(f"wrong by {error}: {workload}, {config}, {splits} splits", file=sys.stderr)
                continue
            rows.append(
                {
                    "models": models,
                    **workload._asdict(),
                    "splits": splits,
                    "µs": time_launch(case, grads),
                    "current": config == current and (not has_splits or splits == current_splits),
                    **config,
                }
            )
    return sorted(rows, key=lambda row: row["µs"])


def main() -> None:
    """Compile the kernels, time them and write a CSV file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="1,5,15,25")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--out", default="tiles.csv")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        shares = [(n, options.processes, options.operations) for n in range(options.processes)]
        pool.map(compile_share, shares, chunksize=1)
    print("compiled", file=sys.stderr)
    engine_config = tiling.tile_config
    columns = ("models", *Workload._fields, "splits", "µs", "current")
    sizes = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "TILES", "num_warps", "num_stages")
    with open(options.out, "w", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *sizes])
        writer.writeheader()
        for models, workload in itertools.product(
            map(int, options.models.split(",")), select_workloads(options.operations)
        ):
            operation, large, small, _ = workload
            rows = benchmark(workload, models, engine_config(operation, large, small, models, BF16))
            writer.writerows(rows)
            file.flush()
            for row in rows[:3]:
                print(*(f"{key}={_format(value)}" for key, value in row.items()))


def _format(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
