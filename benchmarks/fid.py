"""How much an FID depends on how it is taken: `python examples/judge_fid.py RUN RUN --pictures 10000 --out fids.csv`.

Papers seldom say. For each run this takes the FID of what a model makes in every way that is in use: samples from
N(0, I) or reconstructions, whose codes are posterior means or draws; at the size that the model was trained at or at
the size that the pictures had before they were made larger, both sets alike; as they are or through a JPEG file;
against pictures of the test part or of the training part. Only the features are the same throughout: the Inception of
2015. Compare within a row of the table alone.

A CPU takes 0.2 s for each picture and way: begin with --pictures 200.
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
    decoded,
    load_run,
    on_test_examples,
    prior_codes,
    some_examples,
)
from controlvae.metrics import fid
from controlvae.metrics.image.inception import Inception

BATCH = 100
Made = Callable[[LoadedRun, Tensor], Iterator[Tensor]]


class Found(NamedTuple):
    """An FID and how it was taken."""

    run: str
    made: str
    against: str
    way: str
    fid: float


def samples(run: LoadedRun, chosen: Tensor) -> Iterator[Tensor]:
    for z in prior_codes(run, len(chosen)).split(BATCH):
        yield decoded(run, z)


def reconstructions(run: LoadedRun, chosen: Tensor) -> Iterator[Tensor]:
    for few in chosen.split(BATCH):
        yield decoded(run, run.model.encode(run.examples.batch(few)).mean)


def drawn_reconstructions(run: LoadedRun, chosen: Tensor) -> Iterator[Tensor]:
    """From a draw of the posterior: what training sees."""
    noise = torch.Generator().manual_seed(0)
    for few in chosen.split(BATCH):
        draws = torch.randn(len(few), run.model.latents, generator=noise).to(run.device)
        yield decoded(run, run.model.encode(run.examples.batch(few)).sample(draws))


def pictures(run: LoadedRun, chosen: Tensor) -> Iterator[Tensor]:
    for few in chosen.split(BATCH):
        yield run.examples.batch(few)


MADE: dict[str, Made] = {
    "samples": samples,
    "reconstructions": reconstructions,
    "drawn reconstructions": drawn_reconstructions,
}


def as_is(x: Tensor) -> Tensor:
    return x


def smaller(size: int) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(
        x, size=(size, size), mode="bilinear", antialias=True, align_corners=False
    )


def through_jpeg(x: Tensor) -> Tensor:
    """As image viewers and many a script save them: quality 75."""
    back = []
    for picture in (x.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture).save(
            file, "JPEG", quality=75
        )
        back.append(np.asarray(Image.open(file)).reshape(picture.shape))
    return torch.from_numpy(np.stack(back)).permute(0, 3, 1, 2).to(x.device) / 255


@torch.no_grad()
def features(
    network: Inception, made: Iterator[Tensor], ways: dict[str, Callable[[Tensor], Tensor]]
) -> dict[str, Tensor]:
    """Of the same pictures in every way: (pictures, 2048) each."""
    found: dict[str, list[Tensor]] = {way: [] for way in ways}
    for few in made:
        for way, change in ways.items():
            found[way].append(network(change(few)))
    return {way: torch.cat(each) for way, each in found.items()}


def judge(path: Path, count: int, size: int, device: torch.device) -> Iterator[Found]:
    """Every FID of one run."""
    trained = load_run(RunFolder(path), device=device)
    tested = on_test_examples(trained)
    parts = {"test": tested, "training": trained} if tested is not None else {"training": trained}
    network = load_inception(root=trained.root).to(device)
    ways = {"as trained": as_is, f"at {size}x{size}": smaller(size), "through JPEG": through_jpeg}
    chosen = {part: some_examples(run, min(count, run.available)) for part, run in parts.items()}
    references = {
        part: features(network, pictures(run, chosen[part]), ways) for part, run in parts.items()
    }
    first = next(iter(parts))  # reconstructions are of the test part where there is one
    for what, make in MADE.items():
        made = features(network, make(parts[first], chosen[first]), ways)
        for part, reference in references.items():
            for way in ways:
                yield Found(str(path), what, part, way, fid(reference[way], made[way]).score)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of pictures")
    parser.add_argument("--pictures", type=int, default=10_000, help="of each set")
    parser.add_argument(
        "--size", type=int, default=32, help="what the pictures were before they were made larger"
    )
    parser.add_argument("--out", type=Path, default=Path("fids.csv"))
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: list[Found] = []
    for path in given.runs:
        for one in judge(path, given.pictures, given.size, device):
            found.append(one)
            print(*one[:4], f"{one.fid:.2f}", sep="  ", flush=True)
    with given.out.open("w", newline="") as file:
        csv.writer(file).writerows([Found._fields, *found])
    scores = {(one.run, *one[1:4]): f"{one.fid:.1f}" for one in found}
    heads = ["made", "against", "way", *map(str, given.runs)]
    print(f"\n| {' | '.join(heads)} |\n| --- | --- | --- |{' ---: |' * len(given.runs)}")
    for kind in dict.fromkeys(one[1:4] for one in found):
        print(
            f"| {' | '.join(kind)} | {' | '.join(scores.get((str(run), *kind), '–') for run in given.runs)} |"
        )


if __name__ == "__main__":
    main()
