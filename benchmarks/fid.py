"""Compute the FID of runs under every common protocol.

    python benchmarks/fid.py RUN RUN --images 10000 --out fids.csv

Papers seldom state their protocol. For each run this computes the FID of

- samples from N(0, I), reconstructions of posterior means and reconstructions of posterior draws;
- at the training resolution, at the original resolution, and after a round trip through JPEG;
- against the test set and against the training set.

Generated and reference images are treated alike. The features are those of the Inception network of
2015 throughout. Compare only FIDs of one row of the table. A CPU takes 0.2 s per image and
protocol, so start with --images 200.
"""

import argparse
import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from controlvae.lab.evaluation.inception_weights import load_inception
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import (
    LoadedRun,
    decode_codes,
    load_run,
    on_test_examples,
    prior_codes,
    select_examples,
)
from controlvae.metrics import fid
from controlvae.metrics.image.inception import Inception

BATCH = 100
Generator = Callable[[LoadedRun, Tensor], Iterator[Tensor]]
Transform = Callable[[Tensor], Tensor]


class FidRow(NamedTuple):
    """An FID and its protocol."""

    run: str
    generated: str
    reference: str
    transform: str
    fid: float


def generate_samples(run: LoadedRun, indices: Tensor) -> Iterator[Tensor]:
    """Yield batches of prior samples, as many as there are indices."""
    for z in prior_codes(run, len(indices)).split(BATCH):
        yield decode_codes(run, z)


def reconstruct_means(run: LoadedRun, indices: Tensor) -> Iterator[Tensor]:
    """Yield batches of images decoded from posterior means."""
    for batch in indices.split(BATCH):
        yield decode_codes(run, run.model.encode(run.examples.batch(batch)).mean)


def reconstruct_draws(run: LoadedRun, indices: Tensor) -> Iterator[Tensor]:
    """Yield batches of images decoded from posterior draws, as in training."""
    generator = torch.Generator().manual_seed(0)
    for batch in indices.split(BATCH):
        noise = torch.randn(len(batch), run.model.latents, generator=generator).to(run.device)
        yield decode_codes(run, run.model.encode(run.examples.batch(batch)).sample(noise))


def read_images(run: LoadedRun, indices: Tensor) -> Iterator[Tensor]:
    """Yield batches of the data set."""
    for batch in indices.split(BATCH):
        yield run.examples.batch(batch)


GENERATORS: dict[str, Generator] = {
    "samples": generate_samples,
    "reconstructions": reconstruct_means,
    "drawn reconstructions": reconstruct_draws,
}


def keep_unchanged(x: Tensor) -> Tensor:
    """Return the images unchanged."""
    return x


def resize_to(size: int) -> Transform:
    """Return a transform that resizes images to size x size with antialiasing."""
    return lambda x: F.interpolate(
        x, size=(size, size), mode="bilinear", antialias=True, align_corners=False
    )


def encode_jpeg(x: Tensor) -> Tensor:
    """Encode and decode images as JPEG of quality 75, the default of common viewers and scripts."""
    decoded_images = []
    for image in (x.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy():
        pixels = image.squeeze(-1) if image.shape[-1] == 1 else image
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=75)
        decoded_images.append(np.asarray(Image.open(file)).reshape(image.shape))
    return torch.from_numpy(np.stack(decoded_images)).permute(0, 3, 1, 2).to(x.device) / 255


@torch.no_grad()
def extract_features(
    network: Inception, batches: Iterator[Tensor], transforms: dict[str, Transform]
) -> dict[str, Tensor]:
    """Return the features of the same images under each transform, (images, 2048) each.

    Args:
        network: Feature extractor.
        batches: Images.
        transforms: Transforms by name.
    """
    features: dict[str, list[Tensor]] = {name: [] for name in transforms}
    for batch in batches:
        for name, transform in transforms.items():
            features[name].append(network(transform(batch)))
    return {name: torch.cat(values) for name, values in features.items()}


def compute_fids(path: Path, count: int, size: int, device: torch.device) -> Iterator[FidRow]:
    """Yield the FIDs of one run under every protocol.

    Args:
        path: Run folder.
        count: Images of each set.
        size: Original resolution of the images.
        device: Device to compute on.
    """
    run = load_run(RunFolder(path), device=device)
    test_run = on_test_examples(run)
    splits = {"test": test_run, "training": run} if test_run is not None else {"training": run}
    network = load_inception(root=run.root).to(device)
    transforms: dict[str, Transform] = {
        "as trained": keep_unchanged,
        f"at {size}x{size}": resize_to(size),
        "through JPEG": encode_jpeg,
    }
    indices = {
        name: select_examples(each, min(count, each.available)) for name, each in splits.items()
    }
    references = {
        name: extract_features(network, read_images(each, indices[name]), transforms)
        for name, each in splits.items()
    }
    source = next(iter(splits))  # reconstruct the test set if there is one
    for kind, generate in GENERATORS.items():
        generated = extract_features(network, generate(splits[source], indices[source]), transforms)
        for name, reference in references.items():
            for transform in transforms:
                score = fid(reference[transform], generated[transform]).score
                yield FidRow(str(path), kind, name, transform, score)


def format_table(rows: list[FidRow], runs: list[str]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a column per run."""
    scores = {(row.run, *row[1:4]): f"{row.fid:.1f}" for row in rows}
    yield f"| {' | '.join(['generated', 'reference', 'transform', *runs])} |"
    yield f"| --- | --- | --- |{' ---: |' * len(runs)}"
    for protocol in dict.fromkeys(row[1:4] for row in rows):
        cells = [scores.get((run, *protocol), "–") for run in runs]
        yield f"| {' | '.join([*protocol, *cells])} |"


def main() -> None:
    """Compute the FIDs, write a CSV file and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of image models")
    parser.add_argument(
        "--images", "--pictures", type=int, default=10_000, help="images of each set"
    )
    parser.add_argument("--size", type=int, default=32, help="original resolution of the images")
    parser.add_argument("--out", type=Path, default=Path("fids.csv"))
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[FidRow] = []
    for path in options.runs:
        for row in compute_fids(path, options.images, options.size, device):
            rows.append(row)
            print(*row[:4], f"{row.fid:.2f}", sep="  ", flush=True)
    with options.out.open("w", newline="") as file:
        csv.writer(file).writerows([FidRow._fields, *rows])
    print("", *format_table(rows, [str(path) for path in options.runs]), sep="\n")


if __name__ == "__main__":
    main()
