"""Times the three products of the stacked engine under other tiles, warps and pipelines than its own, on this GPU.

    python examples/judge_tiles.py --models 1,5,15,25 --out tiles.csv

The layers are those of the paper's network on 2D Shapes, batch 64, `bf16`. Kernels are compiled by many processes;
a time is the median of five replays of a graph of ten launches. `training/stacked/products.py` has what was chosen.
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

from controlvae.lab.engines.stacked import ops as products

BATCH = 64
BF16 = products.Precision("bf16")
GPU = torch.device("cuda")


class Product(NamedTuple):
    """One product of one layer: small maps of size x size, large ones of twice that."""

    operation: str
    large: int  # channels
    small: int
    size: int


LAYERS = ((1, 32, 32), (32, 32, 16), (32, 64, 8), (64, 64, 4))
PRODUCTS = [
    Product(operation, *layer) for operation in ("gather", "spread", "outer") for layer in LAYERS
]


def configs(product: Product) -> Iterator[dict[str, int]]:
    """Tiles that may be worth a try."""
    wide_large, wide_small = (
        products._padded(4 * product.large),
        products._padded(4 * product.small),
    )
    tiles = sorted({min(tile, wide_large) for tile in (64, 128)})
    match product.operation, products._few(product.large):
        case "gather", _:
            depths = sorted(
                {min(depth, products._padded(16 * product.large)) for depth in (64, 128, 256)}
            )
            shapes = {
                "ROWS": (64, 128, 256),
                "TILE": (products._tile(product.small),),
                "DEPTH": depths,
            }
        case "spread", _:
            shapes = {
                "ROWS": (64, 128),
                "TILE": tiles,
                "DEPTH": (64, wide_small),
                "TURNS": (1, 2, 4, 8),
            }
        case _, True:
            shapes = {
                "ROWS": (64, 128, 256),
                "SLICE": (products._padded(16 * product.large),),
                "TILE": (products._tile(product.small),),
            }
        case _, False:
            shapes = {
                "ROWS": (32, 64),
                "SLICE": tiles,
                "TILE": sorted({min(tile, wide_small) for tile in (64, 128)}),
            }
    shapes |= {
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4) if product.operation == "gather" else (2, 3),
    }
    if product.operation == "outer":
        shapes["num_stages"] = (3, 4)
    for values in itertools.product(*shapes.values()):
        config = dict(zip(shapes, values, strict=True))
        if config.get("DEPTH") == 64 and config.get("TURNS", 1) > 1:
            continue  # turns are for weights that are read once
        yield config


def parts(product: Product, config: dict[str, int], models: int) -> list[int]:
    """Into how many parts a weight gradient's sum may be split; no other product has any."""
    if product.operation != "outer":
        return [1]
    own = products.parts(product.large, product.small, models, BF16)
    if products._few(product.large):
        return sorted({own, 64, 128, 256})
    tiles = triton.cdiv(4 * product.large, config["SLICE"]) * triton.cdiv(
        4 * product.small, config["TILE"]
    )
    return sorted(
        {own, *(count for count in (2, 4, 8, 16, 32, 64) if 100 <= tiles * count * models <= 600)}
    )


class Case:
    """A product's tensors, and its launch. It is measured with the gate, as in a backward pass."""

    def __init__(self, product: Product, models: int) -> None:
        _, large, small, size = self.product = product
        draw = torch.Generator(GPU).manual_seed(0)

        def tensor(*shape: int) -> Tensor:
            return torch.randn(models, *shape, device=GPU, generator=draw).bfloat16()

        self.large, self.small = (
            tensor(BATCH, 2 * size, 2 * size, large),
            tensor(BATCH, size, size, small),
        )
        self.weight = tensor(4, 4, large, small)

    def grads(self, count: int) -> tuple[Tensor, ...]:
        models, *sizes = self.weight.shape
        shapes = (
            (models, count, *sizes),
            (models, products.large_bias_parts(sizes[2], count), sizes[2]),
        )
        return tuple(torch.full(shape, torch.nan, device=GPU) for shape in shapes)

    def launch(self, grads: tuple[Tensor, ...] = ()) -> Tensor:
        match self.product.operation:
            case "gather":
                return products.gather(self.large, self.weight, BF16, gate=self.small)
            case "spread":
                return products.spread(self.small, self.weight, BF16, gate=self.large)
        products.outer(self.large, self.small, *grads, BF16, large_bias=True)
        return grads[0]

    def expected(self) -> Tensor:
        """The first model's, by torch's convolutions in float32."""
        large, small = (one[0].float().movedim(-1, 1) for one in (self.large, self.small))
        weight = self.weight[0].float().permute(3, 2, 0, 1)
        match self.product.operation:
            case "gather":
                return (F.conv2d(large, weight, stride=2, padding=1) * (small > 0)).movedim(1, -1)
            case "spread":
                return (
                    F.conv_transpose2d(small, weight, stride=2, padding=1) * (large > 0)
                ).movedim(1, -1)
        return torch.nn.grad.conv2d_weight(large, weight.shape, small, stride=2, padding=1).permute(
            2, 3, 1, 0
        )

    def error(self, grads: tuple[Tensor, ...]) -> float:
        """Of the first model, relative."""
        got, expected = self.launch(grads)[0].float(), self.expected()
        found = (got.sum(0) if grads else got, expected)
        pairs = (
            [found, (grads[1][0].sum(0), self.large[0].float().sum((0, 1, 2)))]
            if grads
            else [found]
        )
        return max(((got - right).norm() / right.norm()).item() for got, right in pairs)


def chosen(operations: str) -> list[Product]:
    return [product for product in PRODUCTS if product.operation in operations.split(",")]


def use(config: dict[str, int]) -> None:
    products._config = lambda *sizes: config  # type: ignore[assignment]


def compile_some(share: tuple[int, int, str]) -> None:
    """Every nth kernel, into the cache on disk. How many models and parts there are does not change a kernel."""
    first, every, operations = share
    wanted = [(product, config) for product in chosen(operations) for config in configs(product)]
    for product, config in wanted[first::every]:
        use(config)
        case = Case(product, 1)
        with suppress(triton.runtime.errors.OutOfResources):
            case.launch(case.grads(16))


def time(case: Case, grads: tuple[Tensor, ...]) -> float:
    """Microseconds a launch."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            case.launch(grads)
    took = []
    for _ in range(6):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 100)
    return statistics.median(took[1:])


def judge(product: Product, models: int, own: dict[str, int]) -> list[dict[str, Any]]:
    """Every tile's time, fastest first."""
    case, found = Case(product, models), []
    for config in [own, *configs(product)]:
        use(config)
        for count in parts(product, config, models):
            grads = case.grads(count) if product.operation == "outer" else ()
            try:
                error = case.error(grads)
            except triton.runtime.errors.OutOfResources:
                continue
            if not error < 0.01:
                print(f"wrong by {error}: {product}, {config}, {count} parts", file=sys.stderr)
                continue
            shown = {"models": models, **product._asdict(), "parts": count, "µs": time(case, grads)}
            usual = product.operation != "outer" or count == products.parts(
                product.large, product.small, models, BF16
            )
            found.append({**shown, "own": config == own and usual, **config})
    return sorted(found, key=lambda row: row["µs"])


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--models", default="1,5,15,25")
    asked.add_argument("--operations", default="gather,spread,outer")
    asked.add_argument("--out", default="tiles.csv")
    asked.add_argument("--processes", type=int, default=os.cpu_count())
    options = asked.parse_args()
    own = products._config
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        shares = [(n, options.processes, options.operations) for n in range(options.processes)]
        pool.map(compile_some, shares, chunksize=1)
    print("compiled", file=sys.stderr)
    shown = ("models", *Product._fields, "parts", "µs", "own")
    sizes = ("ROWS", "TILE", "DEPTH", "TURNS", "SLICE", "num_warps", "num_stages")
    with open(options.out, "w", newline="") as file:
        writer = csv.DictWriter(file, [*shown, *sizes])
        writer.writeheader()
        for models, product in itertools.product(
            map(int, options.models.split(",")), chosen(options.operations)
        ):
            found = judge(
                product, models, own(product.operation, product.large, product.small, models, BF16)
            )
            writer.writerows(found)
            file.flush()
            for row in found[:3]:
                print(
                    *(
                        f"{key}={value:.1f}" if key == "µs" else f"{key}={value}"
                        for key, value in row.items()
                    )
                )


if __name__ == "__main__":
    main()
