"""The theorem behind the paper's band, held against trained runs: what a higher KL gains over the plain VAE."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from controlvae.lab.io import write_csv
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.style import COLOURS
from controlvae.tuning.rules import gain_bound, target_range


@dataclass(frozen=True)
class BaselinePair:
    """A plain VAE and a run at another KL, alike but for the weight; nats per example."""

    setting: str
    seed: int
    kl_vae: float
    d: float  # KL above the plain VAE's
    gain: float  # in reconstruction, E[log p(x|z)]

    @property
    def bound(self) -> float:
        return gain_bound(self.kl_vae, self.d)

    @property
    def elbo_gain(self) -> float:
        return self.gain - self.d

    @property
    def inside(self) -> bool:
        """Whether it lies in the paper's band."""
        return self.kl_vae + self.d <= target_range(self.kl_vae).high


def write_elbo_bound(
    pairs: Sequence[BaselinePair], settings: Sequence[str], measured_on: str, out: Path
) -> list[str]:
    """Writes `theorem.csv` and `theorem.png`; returns what they show, as lines.

    Runs with a KL below the plain VAE's are named and left out: the theorem is about those above it. `settings` are all
    of the sweep's, so that a colour is the same in its other pictures.
    """
    above = [pair for pair in pairs if pair.d > 0]
    if not above:
        return ["no run has a KL above the plain VAE's: the theorem has nothing to say"]
    below = [f"{pair.setting}, seed {pair.seed}" for pair in pairs if pair.d <= 0]
    left_out = [f"not above the plain VAE's KL, and left out: {'; '.join(below)}"] if below else []
    heads = [
        "setting",
        "seed",
        "KL of the VAE",
        "d",
        "gain in reconstruction",
        "bound",
        "gain in ELBO",
        "inside band",
    ]
    numbers = [(pair.kl_vae, pair.d, pair.gain, pair.bound, pair.elbo_gain) for pair in above]
    lines = (
        [pair.setting, pair.seed, *(f"{n:.6g}" for n in own), pair.inside]
        for pair, own in zip(above, numbers, strict=True)
    )
    write_csv(out / "theorem.csv", heads, lines)
    save_figure(plot_elbo_bound(above, settings, measured_on), out / "theorem.png")
    return [
        *_rows(above),
        *left_out,
        _verdict(above, measured_on),
        f"written to {out / 'theorem.csv'} and .png",
    ]


def plot_elbo_bound(
    pairs: Sequence[BaselinePair], settings: Sequence[str], measured_on: str
) -> Figure:
    """Left, the gain in reconstruction under its bound; right, what is left of it once the KL is paid."""
    kl_vae = float(np.mean([pair.kl_vae for pair in pairs]))
    end = target_range(kl_vae).high - kl_vae
    d = np.linspace(
        0, 1.1 * max(end, *(pair.d for pair in pairs)), 200
    )  # the band's end is seen wherever runs lie
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(
        d,
        [gain_bound(kl_vae, value) for value in d],
        color="black",
        linewidth=1,
        label="bound, √(4(2·KL + d))",
    )
    left.plot(d, d, "--", color="#55656f", linewidth=1, label="what the KL costs, d")
    right.axhline(0, color="black", linewidth=1)
    right.axvspan(0, end, color="#dde4e8", alpha=0.8, linewidth=0, label="the paper's band")
    for setting, own in _by_setting(pairs).items():
        look = {"s": 18, "color": COLOURS[settings.index(setting) % len(COLOURS)], "zorder": 3}
        left.scatter([pair.d for pair in own], [pair.gain for pair in own], label=setting, **look)
        right.scatter([pair.d for pair in own], [pair.elbo_gain for pair in own], **look)
    for axis, label in ((left, "gain in reconstruction (nats)"), (right, "gain in ELBO (nats)")):
        axis.set(xlabel=f"d: KL above the plain VAE's {kl_vae:.1f} nats", ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.legend(
            facecolor="white", edgecolor="none", framealpha=1, fontsize=7
        )  # the band may fill the panel
    figure.suptitle(f"measured on {measured_on}", x=0.99, ha="right", fontsize=7, color="#55656f")
    return figure


def _by_setting(pairs: Sequence[BaselinePair]) -> Mapping[str, list[BaselinePair]]:
    return {
        setting: [p for p in pairs if p.setting == setting]
        for setting in dict.fromkeys(p.setting for p in pairs)
    }


def _rows(pairs: Sequence[BaselinePair]) -> list[str]:
    lines = []
    for setting, own in _by_setting(pairs).items():
        d, gain, bound, elbo = (
            float(np.mean([getattr(p, n) for p in own]))
            for n in ("d", "gain", "bound", "elbo_gain")
        )
        band = "inside the band" if all(pair.inside for pair in own) else "beyond the band"
        lines.append(
            f"{setting:24s} d {d:+8.2f}  gain {gain:+8.2f} of at most {bound:.2f}  ELBO {elbo:+8.2f}  {band}"
        )
    return lines


def _verdict(pairs: Sequence[BaselinePair], measured_on: str) -> str:
    """Where the heuristic holds, in a sentence."""
    held = sum(pair.gain <= pair.bound for pair in pairs)
    inside, beyond = [p for p in pairs if p.inside], [p for p in pairs if not p.inside]
    rose = [
        f"{sum(p.elbo_gain > 0 for p in own)} of {len(own)} {where}"
        for own, where in ((inside, "inside the band"), (beyond, "beyond it"))
        if own
    ]
    return f"on {measured_on}: the bound held in {held} of {len(pairs)} pairs; the ELBO rose in {', '.join(rose)}"
