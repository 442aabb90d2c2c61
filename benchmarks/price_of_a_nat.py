"""Compare the measured cost of targets in ELBO with the cost that `cv.elbo_cost` predicts.

    python benchmarks/price_of_a_nat.py collect shapes2d-quick=runs/shapes text-quick=runs/text
    python benchmarks/price_of_a_nat.py draw

`collect` reads `theorem.csv` of finished sweeps with `--vae` into results/price/sweeps.csv. `draw`
reads that file and the committed tables of CIFAR-10, CelebA and 2D Shapes, and writes
results/price/measured.csv, table.md and price.png. A row is a run and the plain VAE of its seed.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from figure_style import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, new_figure, save_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae import elbo_cost
from controlvae.lab.evaluation.statistics import sample_sd

RESULTS = Path(__file__).resolve().parents[1] / "results"
OUT = RESULTS / "price"


@dataclass(frozen=True)
class Pair:
    """A run and the plain VAE of its seed, in nats per example."""

    data: str
    setting: str
    seed: int
    kl_vae: float
    latents: int  # used by the plain VAE
    d: float  # KL above the plain VAE's
    cost: float  # in ELBO
    source: str  # file below results/

    @property
    def predicted(self) -> float | None:
        """The predicted cost, or None for a collapsed plain VAE."""
        return elbo_cost(self.d, self.latents) if self.latents else None


@dataclass(frozen=True)
class Table:
    """A committed table with a plain VAE, and the rows that are compared with it.

    Attributes:
        data: Label of the data set.
        path: CSV file below results/.
        latents: Latents of the network. The tables do not say how many are used.
        plain: Preset of the plain VAE.
        settings: Label of each other preset that minimises a weighted sum of the same terms.
    """

    data: str
    path: str
    latents: int
    plain: str
    settings: Mapping[str, str]


TABLES = (
    Table(
        "CIFAR-10, 128×128",
        "images/table-cifar10.csv",
        100,
        "cifar10-vae",
        {"cifar10-control-145": "KL = 145", "cifar10-lagrange-145": "KL = 145, multiplier"},
    ),
    Table(
        "CelebA, 8,500 faces",
        "images/table-celeba.csv",
        500,
        "celeba-vae",
        {"celeba-control-190": "KL = 190", "celeba-lagrange-155": "KL = 155, multiplier"},
    ),
    Table(
        "2D Shapes, 64×64",
        "disentangling/table-short.csv",
        10,
        "shapes2d-short-vae",
        {"shapes2d-short-beta": "β = 4", "shapes2d-short-mean": "β = 10.5"},
    ),
)
SWEEPS = {  # name on the command line: label
    "shapes2d-quick": "2D Shapes, 32×32",
    "cifar10-small": "CIFAR-10, 32×32",
    "text-quick": "sentences of a grammar",
    "dialog-quick": "dialogs of a grammar",
}
STYLES = {  # label: colour, marker
    "CIFAR-10, 128×128": (BLUE, "o"),
    "CIFAR-10, 32×32": (SKY, "o"),
    "CelebA, 8,500 faces": (GREEN, "s"),
    "2D Shapes, 32×32": (VERMILION, "^"),
    "2D Shapes, 64×64": (ORANGE, "^"),
    "sentences of a grammar": (PINK, "D"),
    "dialogs of a grammar": (GREY, "v"),
}


def main() -> None:
    """Collect sweeps, or draw the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    collect = parts.add_parser("collect", help="read finished sweeps into sweeps.csv")
    collect.add_argument("sweeps", nargs="+", metavar="NAME=FOLDER")
    parts.add_parser("draw", help="write measured.csv, table.md and the figure")
    options = parser.parse_args()
    if options.part == "collect":
        collect_sweeps(dict(text.split("=", 1) for text in options.sweeps))
    else:
        draw()


def collect_sweeps(folders: Mapping[str, str]) -> None:
    """Write sweeps.csv from `theorem.csv` of each sweep; other sweeps in it are kept."""
    path = OUT / "sweeps.csv"
    new = [
        Pair(
            SWEEPS[name],
            row["setting"],
            int(row["seed"]),
            float(row["KL of the VAE"]),
            int(row["used latents of the VAE"]),
            float(row["d"]),
            -float(row["gain in ELBO"]),
            "price/sweeps.csv",
        )
        for name, folder in folders.items()
        for row in _rows(Path(folder) / "theorem.csv")
    ]
    kept = [p for p in read_pairs(path) if p.data not in {SWEEPS[name] for name in folders}]
    _write_pairs(path, [*kept, *new])


def draw() -> None:
    """Write the pairs, their table and the figure."""
    pairs = [*(pair for table in TABLES for pair in read_table(table))]
    pairs += read_pairs(OUT / "sweeps.csv")
    pairs.sort(key=lambda pair: list(STYLES).index(pair.data))
    _write_pairs(OUT / "measured.csv", pairs)
    (OUT / "table.md").write_text("\n".join(table_lines(pairs)) + "\n", encoding="utf-8")
    save_figure(plot_prices(pairs), OUT / "price")


def plot_prices(pairs: Sequence[Pair]) -> Figure:
    """Plot measured against predicted cost, and the cases where the formula does not hold."""
    figure, ((left, right),) = new_figure(3.0, 1, 2)
    _draw_pairs(left, [p for p in pairs if p.d > 0 and p.latents > 0])
    _draw_collapsed(right, [p for p in pairs if p.latents == 0 or p.d <= 0])
    return figure


def read_table(table: Table) -> Iterator[Pair]:
    """Yield the pairs of a committed table."""
    rows = _rows(RESULTS / table.path)
    plain = {row["seed"]: row for row in rows if row["preset"] == table.plain}
    for row in rows:
        if row["preset"] in table.settings:
            vae = plain[row["seed"]]
            d = float(row["KL"]) - float(vae["KL"])
            gain = float(vae["reconstruction"]) - float(row["reconstruction"])
            yield Pair(
                table.data,
                table.settings[row["preset"]],
                int(row["seed"]),
                float(vae["KL"]),
                table.latents,
                d,
                d - gain,
                table.path,
            )


def table_lines(pairs: Iterable[Pair]) -> list[str]:
    """Return a Markdown table: means ± standard deviations over the seeds of each setting."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.data, pair.setting), []).append(pair)
    lines = [
        "| data | setting | seeds | KL of the VAE | n | d | measured cost | predicted |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (data, setting), own in groups.items():
        costs = [pair.cost for pair in own]
        latents = sorted({pair.latents for pair in own})
        predicted = [cost for pair in own if (cost := pair.predicted) is not None]
        cells = [
            data,
            setting,
            str(len(own)),
            f"{fmean(pair.kl_vae for pair in own):.2f}",
            " to ".join(str(count) for count in dict.fromkeys((latents[0], latents[-1]))),
            _number(fmean(pair.d for pair in own)),
            f"{_number(fmean(costs))} ± {sample_sd(costs):.2f}",
            _number(fmean(predicted)) if len(predicted) == len(own) else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _draw_pairs(axis: Axes, pairs: list[Pair]) -> None:
    """Draw measured against predicted cost, both in units of their scale."""
    ends = (0.02, 40.0)
    axis.plot(ends, ends, color="black", linewidth=0.8)
    for data, own in _by_data(pairs):
        colour, marker = STYLES[data]
        axis.scatter(
            [pair.predicted for pair in own],
            [pair.cost for pair in own],
            s=14,
            marker=marker,
            color=colour,
            alpha=0.75,
            linewidths=0,
            label=data,
        )
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=0.3)
    axis.set(xlabel="predicted cost in ELBO (nats)", ylabel="measured cost in ELBO (nats)")
    axis.set_title("above the plain VAE's KL")
    axis.legend(loc="upper left")


def _draw_collapsed(axis: Axes, pairs: list[Pair]) -> None:
    """Draw cost against distance where the formula does not apply or is off."""
    for data, own in _by_data(pairs):
        colour, marker = STYLES[data]
        points: dict[str, Any] = {"s": 14, "marker": marker, "color": colour, "linewidths": 0}
        axis.scatter([p.d for p in own], [p.cost for p in own], label=data, alpha=0.75, **points)
        predicted = [(p.d, p.predicted) for p in own if p.predicted is not None]
        if predicted:
            d, costs = zip(*sorted(predicted), strict=True)
            axis.plot(d, costs, "--", color=colour, linewidth=0.9, label="its prediction")
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_yscale("symlog", linthresh=1.0)
    axis.set(xlabel="d: KL above the plain VAE's (nats)", ylabel="measured cost in ELBO (nats)")
    axis.set_title("collapsed VAEs, and far below the plain VAE's KL")
    axis.legend(loc="lower left")


def _by_data(pairs: Iterable[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.data, []).append(pair)
    yield from groups.items()


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file; none if it does not exist."""
    if not path.is_file():
        return []
    numbers = {"seed": int, "latents": int, "kl_vae": float, "d": float, "cost": float}
    return [
        Pair(**{name: numbers.get(name, str)(value) for name, value in row.items()})
        for row in _rows(path)
    ]


def _write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Pair)])
        writer.writeheader()
        for pair in pairs:
            numbers = {name: f"{getattr(pair, name):.6g}" for name in ("kl_vae", "d", "cost")}
            writer.writerow({**asdict(pair), **numbers})


if __name__ == "__main__":
    main()
