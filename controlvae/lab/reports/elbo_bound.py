"""The bound behind the paper's target range, checked against trained runs.

The theorem bounds what a higher KL gains in reconstruction over the plain VAE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from controlvae.lab.io import write_csv
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.style import COLOURS, QUIET_COLOUR, format_axis
from controlvae.tuning.elbo_cost import elbo_cost
from controlvae.tuning.rules import gain_bound, target_range

_HEADS = (
    "setting",
    "seed",
    "KL of the VAE",
    "d",
    "gain in reconstruction",
    "bound",
    "gain in ELBO",
    "inside band",
    "used latents of the VAE",
    "predicted cost in ELBO",
)


@dataclass(frozen=True)
class BaselinePair:
    """A run and the plain VAE of the same seed, equal up to β; nats per example."""

    setting: str
    seed: int
    kl_vae: float
    d: float  # KL above that of the plain VAE
    gain: float  # in reconstruction, E[log p(x|z)]
    latents: int | None = None  # used by the plain VAE; None if not recorded

    @property
    def bound(self) -> float:
        """Largest gain that the theorem allows."""
        return gain_bound(self.kl_vae, self.d)

    @property
    def elbo_gain(self) -> float:
        """Gain in the ELBO."""
        return self.gain - self.d

    @property
    def predicted_cost(self) -> float | None:
        """Cost in ELBO by `cv.elbo_cost`, or None if no latent is known to be used."""
        return elbo_cost(self.d, self.latents) if self.latents else None

    @property
    def inside(self) -> bool:
        """True if the run lies in the paper's target range."""
        return self.kl_vae + self.d <= target_range(self.kl_vae).high


def write_elbo_bound(
    pairs: Sequence[BaselinePair], settings: Sequence[str], measured_on: str, out: Path
) -> list[str]:
    """Write `theorem.csv` and `theorem.png`, and return lines that summarise them.

    Runs with a KL below that of the plain VAE are named and skipped. The theorem does not apply
    to them.

    Args:
        pairs: The runs of the sweep, each with its plain VAE.
        settings: All settings of the sweep, so that colours agree with its other figures.
        measured_on: Description of the examples behind the numbers.
        out: Folder to write to.
    """
    above = [pair for pair in pairs if pair.d > 0]
    if not above:
        return ["no run has a KL above the plain VAE's, so the theorem does not apply"]
    below = [f"{pair.setting}, seed {pair.seed}" for pair in pairs if pair.d <= 0]
    skipped = [f"skipped, KL not above the plain VAE's: {'; '.join(below)}"] if below else []
    rows = []
    for pair in above:
        numbers = (pair.kl_vae, pair.d, pair.gain, pair.bound, pair.elbo_gain)
        cost = "" if pair.predicted_cost is None else f"{pair.predicted_cost:.6g}"
        shown = [f"{number:.6g}" for number in numbers]
        rows.append([pair.setting, pair.seed, *shown, pair.inside, pair.latents, cost])
    write_csv(out / "theorem.csv", _HEADS, rows)
    save_figure(plot_elbo_bound(above, settings, measured_on), out / "theorem.png")
    return [
        *_describe_settings(above),
        *skipped,
        _describe_bound(above, measured_on),
        f"written to {out / 'theorem.csv'} and .png",
    ]


def plot_elbo_bound(
    pairs: Sequence[BaselinePair], settings: Sequence[str], measured_on: str
) -> Figure:
    """Plot the gain in reconstruction with its bound, and the gain in ELBO next to it.

    Args:
        pairs: Runs with a KL above that of the plain VAE.
        settings: All settings of the sweep, in the order of their colours.
        measured_on: Description of the examples behind the numbers.
    """
    kl_vae = float(np.mean([pair.kl_vae for pair in pairs]))
    end = target_range(kl_vae).high - kl_vae
    # The end of the range is visible wherever the runs lie.
    d = np.linspace(0, 1.1 * max(end, *(pair.d for pair in pairs)), 200)
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    bounds = [gain_bound(kl_vae, value) for value in d]
    left.plot(d, bounds, color="black", linewidth=1, label="bound, √(4(2·KL + d))")
    left.plot(d, d, "--", color=QUIET_COLOUR, linewidth=1, label="cost in KL, d")
    right.axhline(0, color="black", linewidth=1)
    right.axvspan(0, end, color="#dde4e8", alpha=0.8, linewidth=0, label="the paper's band")
    for setting, own in _group_by_setting(pairs).items():
        colour = COLOURS[settings.index(setting) % len(COLOURS)]
        distances = [pair.d for pair in own]
        gains, elbo_gains = [pair.gain for pair in own], [pair.elbo_gain for pair in own]
        left.scatter(distances, gains, label=setting, s=18, color=colour, zorder=3)
        right.scatter(distances, elbo_gains, s=18, color=colour, zorder=3)
    for axis, label in ((left, "gain in reconstruction (nats)"), (right, "gain in ELBO (nats)")):
        axis.set(xlabel=f"d: KL above the plain VAE's {kl_vae:.1f} nats", ylabel=label)
        format_axis(axis)
        # The band may fill the plot, so the legend has a background.
        axis.legend(facecolor="white", edgecolor="none", framealpha=1, fontsize=7)
    title = f"measured on {measured_on}"
    figure.suptitle(title, x=0.99, ha="right", fontsize=7, color=QUIET_COLOUR)
    return figure


def _group_by_setting(pairs: Sequence[BaselinePair]) -> Mapping[str, list[BaselinePair]]:
    groups: dict[str, list[BaselinePair]] = {}
    for pair in pairs:
        groups.setdefault(pair.setting, []).append(pair)
    return groups


def _describe_settings(pairs: Sequence[BaselinePair]) -> list[str]:
    """Return a line of means for each setting."""
    lines = []
    for setting, own in _group_by_setting(pairs).items():
        d, gain, bound, elbo = (
            float(np.mean([getattr(pair, name) for pair in own]))
            for name in ("d", "gain", "bound", "elbo_gain")
        )
        band = "inside the band" if all(pair.inside for pair in own) else "beyond the band"
        lines.append(
            f"{setting:24s} d {d:+8.2f}  gain {gain:+8.2f} of at most {bound:.2f}  "
            f"ELBO {elbo:+8.2f}  {band}"
        )
    return lines


def _describe_bound(pairs: Sequence[BaselinePair], measured_on: str) -> str:
    """Return a sentence on how often the bound held and the ELBO rose."""
    held = sum(pair.gain <= pair.bound for pair in pairs)
    inside, beyond = [p for p in pairs if p.inside], [p for p in pairs if not p.inside]
    rose = [
        f"{sum(p.elbo_gain > 0 for p in own)} of {len(own)} {place}"
        for own, place in ((inside, "inside the band"), (beyond, "beyond it"))
        if own
    ]
    return (
        f"on {measured_on}: the bound held in {held} of {len(pairs)} pairs; "
        f"the ELBO rose in {', '.join(rose)}"
    )
