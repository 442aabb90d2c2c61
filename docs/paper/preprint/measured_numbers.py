"""Every number of the preprint that we measured or that the paper printed, with its file.

    python docs/paper/preprint/measured_numbers.py

writes numbers.tex, a macro for each number, and sources.tex, the table of the appendix. main.tex
contains no measured number but these macros; a test compares both files with the result files.
"""

import math
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from committed import (
    column,
    exact_interval,
    fisher_p,
    last_tenth,
    mean_sd,
    number,
    rows,
    text_number,
)

from controlvae import elbo_cost, gain_bound
from controlvae.diagnostics.separation import predicts_failure
from controlvae.paper.tables import TABLES

_PERCENT = "\\%"
HERE = Path(__file__).resolve().parent
CIFAR, CELEBA = "images/table-cifar10.csv", "images/table-celeba.csv"
FRESH, FULL = "disentangling/fresh-seeds.csv", "disentangling/fresh-seeds-full.csv"
SHORT, CAUSES = "disentangling/table-short.csv", "disentangling/failure-causes.csv"
PTB, PTB_LOG = "language/table-ptb.csv", "language/figure-ptb.csv"
SCORES, PRICE = "disentangling/scores.csv", "price/measured.csv"
SHAPES = "2D Shapes, 32×32"
OUTSIDE = "disentangling/outside-seeds.csv"
PAPER = "controlvae/paper (printed in the paper)"


class Entry(NamedTuple):
    """A number as LaTeX, and where it comes from."""

    latex: str
    file: str
    what: str


def main() -> None:
    """Write numbers.tex and sources.tex."""
    entries = all_entries()
    (HERE / "numbers.tex").write_text(macros(entries), encoding="utf-8")
    (HERE / "sources.tex").write_text(source_table(entries), encoding="utf-8")


def macros(entries: dict[str, Entry]) -> str:
    """Return a LaTeX macro for each number."""
    head = "% Written by measured_numbers.py. Do not edit.\n"
    return head + "".join(
        f"\\newcommand{{\\{name}}}{{\\ensuremath{{{entry.latex}}}}}\n"
        for name, entry in entries.items()
    )


def source_table(entries: dict[str, Entry]) -> str:
    """Return the rows of the appendix: what, number, file."""
    head = "% Written by measured_numbers.py. Do not edit.\n"
    lines = (
        f"{entry.what.replace('%', _PERCENT)} & \\{name} & {_file(entry.file)} \\\\\n"
        for name, entry in entries.items()
    )
    # The rule is here because LaTeX accepts none directly after \\input in a table.
    return head + "".join(lines) + "\\bottomrule\n"


def _file(path: str) -> str:
    return f"\\path{{{path}}}" if "(" not in path else path


def all_entries() -> dict[str, Entry]:
    """Return every number by the name of its macro."""
    return {
        **held_entries(),
        **image_entries(),
        **price_entries(),
        **text_entries(),
        **score_entries(),
        **failure_entries(),
        **cause_entries(),
        **law_entries(),
    }


def printed(table: str, preset: str, name: str) -> float:
    """Return a number that the paper printed."""
    (row,) = (row for row in TABLES[table].rows if row.preset == preset)
    return row.printed[name].mean


def held_entries() -> dict[str, Entry]:
    """Return how well targets are held."""
    errors = [abs(kl / 18 - 1) for kl in column(FULL, "kl", preset="shapes2d-control-18")]
    cifar = last_tenth("images/figure-cifar10.csv", "cifar10-control-145", "kl")
    text = last_tenth(PTB_LOG, "ptb-control-3", "kl")
    return {
        "HeldShapes": Entry(
            f"{100 * max(errors):.4f}\\,\\%", FULL, "largest error of KL = 18, ten seeds"
        ),
        "HeldCifar": Entry(
            f"{100 * abs(cifar / 145 - 1):.4f}\\,\\%", "images/figure-cifar10.csv", "error at 145"
        ),
        "HeldText": Entry(f"{100 * abs(text / 3 - 1):.1f}\\,\\%", PTB_LOG, "error at 3 nats"),
    }


def image_entries() -> dict[str, Entry]:
    """Return ELBO and FID on CIFAR-10, and the faces."""
    names = {
        "Vae": "cifar10-vae",
        "Control": "cifar10-control-145",
        "Multi": "cifar10-lagrange-145",
    }
    entries = {}
    for name, preset in names.items():
        for quantity, digits in (("ELBO", 1), ("FID", 0)):
            if (name, quantity) == ("Multi", "FID"):
                continue
            entries[f"Cifar{name}{quantity.capitalize()}"] = Entry(
                mean_sd(column(CIFAR, quantity, preset=preset), digits),
                CIFAR,
                f"CIFAR-10, {quantity} of {preset}",
            )
            printed_value = number(printed("table-cifar10", preset, quantity), digits)
            entries[f"Paper{name}{quantity.capitalize()}"] = Entry(
                printed_value, PAPER, f"printed {quantity} of {preset}"
            )
    entries["CifarVaeKl"] = Entry(
        mean_sd(column(CIFAR, "KL", preset="cifar10-vae"), 1), CIFAR, "CIFAR-10, KL of cifar10-vae"
    )
    for name, way in (("Raw", "as trained"), ("Jpeg", "through JPEG")):
        (score,) = column("images/fid-ways.csv", "fid", made="samples", against="test", way=way)[:1]
        entries[f"Fid{name}"] = Entry(
            number(score, 0), "images/fid-ways.csv", f"FID of the same samples, {way}"
        )
    (early,) = column("images/sweep-128.csv", "fid mean", setting="plain VAE")
    entries["FidEarly"] = Entry(
        number(early, 0), "images/sweep-128.csv", "FID of a VAE at 40,000 steps, one seed"
    )
    differences = [
        control - vae
        for control, vae in zip(
            column(CIFAR, "FID", preset="cifar10-control-145"),
            column(CIFAR, "FID", preset="cifar10-vae"),
            strict=True,
        )
    ]
    entries["FidDifferences"] = Entry(
        ",\\ ".join(f"{value:+.1f}" for value in differences), CIFAR, "FID against the VAE by seed"
    )
    return entries


def price_entries() -> dict[str, Entry]:
    """Return measured and predicted costs, and the linear VAE that exceeds the bound."""
    names = {
        ("CIFAR-10, 128×128", "KL = 145"): "Cifar",
        ("CelebA, 8,500 faces", "KL = 190"): "Faces",
        (SHAPES, "target=14"): "ShapesA",
        (SHAPES, "target=18"): "ShapesB",
        (SHAPES, "target=24"): "ShapesC",
        (SHAPES, "target=32"): "ShapesD",
        ("2D Shapes, 64×64", "β = 4"): "LowA",
        ("2D Shapes, 64×64", "β = 10.5"): "LowB",
    }
    entries = {}
    for (data, setting), name in names.items():
        wanted = {"data": data, "setting": setting}
        d, costs = column(PRICE, "d", **wanted), column(PRICE, "cost", **wanted)
        latents = column(PRICE, "latents", **wanted)
        predicted = [elbo_cost(x, int(n)) for x, n in zip(d, latents, strict=True)]
        what = f"{data.replace('×', 'x')}, {setting.replace('β', 'beta')}"
        entries[f"Price{name}D"] = Entry(number(fmean(d), 1), PRICE, f"{what}: d")
        entries[f"Price{name}Cost"] = Entry(mean_sd(costs, 2), PRICE, f"{what}: cost")
        entries[f"Price{name}Formula"] = Entry(
            number(fmean(predicted), 2), PRICE, f"{what}: predicted cost"
        )
    excess = [
        100 * (float(entries[f"Price{name}Formula"].latex) / mean - 1)
        for name, setting in (("ShapesB", "18"), ("ShapesC", "24"), ("ShapesD", "32"))
        if (mean := fmean(column(PRICE, "cost", setting=f"target={setting}", data=SHAPES)))
    ]
    entries["PriceExcess"] = Entry(
        f"{min(excess):.0f}\\text{{ to }}{max(excess):.0f}\\,\\%",
        PRICE,
        "predicted above measured cost, 2D Shapes, 18 to 32 nats",
    )
    for name, setting in (("Half", "target=0.5"), ("One", "target=1"), ("Two", "target=2")):
        wanted = {"data": "sentences of a grammar", "setting": setting}
        slope = fmean(column(PRICE, "cost", **wanted)) / fmean(column(PRICE, "d", **wanted))
        entries[f"PriceText{name}"] = Entry(
            number(slope, 2), PRICE, f"sentences, {setting}: cost per nat"
        )
    rose = [row for row in rows(PRICE) if float(row["d"]) > 0 and float(row["cost"]) < 0]
    entries["PriceRose"] = Entry(str(len(rose)), PRICE, "pairs above the VAE whose ELBO rose")
    entries["PriceRoseD"] = Entry(
        number(max(float(row["d"]) for row in rose), 1), PRICE, "largest d of these"
    )
    test = "tests/tuning/test_gain_bound.py"
    d = 1_000 * math.log(1 / 0.8) / 2  # half a nat per latent and e-fold
    entries["LinearGain"] = Entry(number(1_000 * (1 - 0.8) / 2, 0), test, "gain of a linear VAE")
    entries["LinearBound"] = Entry(number(gain_bound(500.0, d), 0), test, "what the bound allows")
    return entries


def text_entries() -> dict[str, Entry]:
    """Return the two curves on Penn Treebank."""
    presets = list(dict.fromkeys(row["preset"] for row in rows(PTB)))
    entries = {}
    for name, quantity in (("Curve", "objective"), ("Elbo", "elbo")):
        values = {preset: last_tenth(PTB_LOG, preset, quantity) for preset in presets}
        ranked = sorted(values, key=lambda preset: -values[preset])
        entries[f"Ptb{name}Rank"] = Entry(
            str(ranked.index("ptb-control-3") + 1), PTB_LOG, f"rank of KL = 3 by {quantity}"
        )
        entries[f"Ptb{name}"] = Entry(
            number(values["ptb-control-3"], 1), PTB_LOG, f"{quantity} of KL = 3, last tenth"
        )
    for name, preset in (("One", "ptb-control-1.5"), ("Three", "ptb-control-3")):
        (information,) = column(PTB, "mutual information", preset=preset)
        entries[f"PtbInformation{name}"] = Entry(
            number(information, 1), PTB, f"mutual information of {preset}"
        )
    best = [float(row["ELBO, best by validation"]) for row in rows(PTB)]
    entries["PtbBestSpread"] = Entry(
        number(sorted(best)[-1] - sorted(best)[1], 2), PTB, "spread of the best five test ELBOs"
    )
    return entries


def score_entries() -> dict[str, Entry]:
    """Return MIG, DCI and reconstruction at full length, and of the short runs."""
    entries = {}
    for name, preset in (
        ("Sixteen", "shapes2d-control-16"),
        ("Eighteen", "shapes2d-control-18"),
        ("Staggered", "shapes2d-staggered-18"),
        ("Equal", "shapes2d-beta-100-matched"),
    ):
        for quantity, digits in (("MIG", 3), ("reconstruction", 1)):
            if quantity == "reconstruction" and name in ("Eighteen", "Staggered"):
                continue  # that of fresh seeds is shown
            values = column(SCORES, quantity, run=preset)
            entries[f"Five{name}{quantity.capitalize()}"] = Entry(
                mean_sd(values, digits), SCORES, f"{quantity} of {preset}, seeds 1 to 5"
            )
    for name, preset in (
        ("Eighteen", "shapes2d-control-18"),
        ("Staggered", "shapes2d-staggered-18"),
    ):
        for path, seeds, label in ((FULL, "Full", "mig"), (OUTSIDE, "Outside", "MIG")):
            entries[f"{seeds}{name}"] = Entry(
                mean_sd(column(path, label, preset=preset), 3),
                path,
                f"MIG of {preset}, fresh seeds",
            )
        entries[f"Full{name}Reconstruction"] = Entry(
            number(fmean(column(FULL, "reconstruction_10000_images", preset=preset)), 1),
            FULL,
            f"reconstruction of {preset}, fresh seeds",
        )
    for name, method in (
        ("Controlled", "ControlVAE (target 16)"),
        ("Replayed", "β(t) of the first row, replayed"),
        ("Mean", "β-VAE (β = 10.5, ControlVAE's mean)"),
        ("FromOne", "ControlVAE (target 16), β from 1"),
    ):
        what = f"MIG in 150,000 steps, {method.replace('β', 'beta')}"
        entries[f"Short{name}"] = Entry(
            mean_sd(column(SHORT, "MIG", method=method), 3), SHORT, what
        )
    for name in ("x", "scale", "shape", "orientation"):
        entries[f"Rmig{name.capitalize()}"] = Entry(
            mean_sd(column(SCORES, f"RMIG of {name}", run="shapes2d-control-18"), 2),
            SCORES,
            f"RMIG of {name}, KL = 18, seeds 1 to 5",
        )
    entries["PaperEighteenMig"] = Entry(
        number(printed("table-mig", "shapes2d-control-18", "MIG"), 3), PAPER, "printed MIG, KL = 18"
    )
    return entries


def failure_entries() -> dict[str, Entry]:
    """Return failures among fresh seeds and what the label-free rule finds."""
    entries, failed = {}, {}
    for name, preset in (
        ("Eighteen", "shapes2d-control-18"),
        ("Staggered", "shapes2d-staggered-18"),
        ("Equal", "shapes2d-beta-100-matched"),
    ):
        failed[name] = int(sum(column(FRESH, "failed_mig", preset=preset)))
        low, high = exact_interval(failed[name], 50)
        entries[f"Fail{name}"] = Entry(str(failed[name]), FRESH, f"failed of 50, {preset}")
        entries[f"Fail{name}Interval"] = Entry(
            f"{low:.0f}\\text{{ to }}{high:.0f}\\,\\%", FRESH, f"95 % interval, {preset}"
        )
    p_staggered = fisher_p(failed["Eighteen"], failed["Staggered"], 50)
    p_equal = fisher_p(failed["Eighteen"], failed["Equal"], 50)
    smallest = min(1.0, 2 * min(p_staggered, p_equal))  # Holm over two comparisons
    entries["FisherStaggered"] = Entry(
        number(smallest, 3), FRESH, "Fisher's p of 7 against 0, Holm-corrected over two"
    )
    entries["NoneOfFive"] = Entry(
        number((1 - failed["Eighteen"] / 50) ** 5, 2), FRESH, "chance that none of five seeds fails"
    )
    entries["FisherEqual"] = Entry(number(p_equal, 2), FRESH, "Fisher's p of 7 against 3")
    pairs = [
        (row["failed_mig"] == "1", predicts_failure(map(float, row["kl_per_latent_60000"].split())))
        for row in rows(FRESH)
        if row["preset"] != "shapes2d-control-16"  # repeats KL = 18 up to this step
    ]
    entries["RuleFailed"] = Entry(
        str(sum(failed for failed, _ in pairs)), FRESH, "failed runs, without the repeated row"
    )
    for name, pair, kind in (
        ("RuleFound", (True, True), "failed"),
        ("RuleFalse", (False, True), "good"),
    ):
        entries[name] = Entry(str(pairs.count(pair)), FRESH, f"{kind} runs that the rule flags")
    entries["RuleGood"] = Entry(
        str(len(pairs) - sum(failed for failed, _ in pairs)), FRESH, "good runs, without that row"
    )
    full = column(FULL, "failed_mig", preset="shapes2d-control-18")
    entries["FullFailed"] = Entry(str(int(sum(full))), FULL, "failed of ten at full length")
    return entries


def cause_entries() -> dict[str, Entry]:
    """Return how many of fifty seeds the rule flags under each change."""
    entries = {}
    for name, candidate in (
        ("Initial", "initialisation"),
        ("Weights", "latent-weights"),
        ("Beta", "first-beta"),
        ("Adam", "adam"),
    ):
        flagged = column(CAUSES, "failed_label_free", candidate=candidate)
        entries[f"Cause{name}"] = Entry(
            str(int(sum(flagged))), CAUSES, f"flagged of {len(flagged)}, {candidate}"
        )
    page = "disentangling/failure-causes.md"
    entries["CauseHolm"] = Entry(
        text_number(page, r"N\(0, 0\.02\) instead.*?\*\*([\d.]+)\*\* \|"), page, "Holm-corrected p"
    )
    entries["CauseBaseline"] = Entry(
        str(int(sum(column(FRESH, "failed_label_free", preset="shapes2d-control-18")))),
        FRESH,
        "flagged of 50, KL = 18",
    )
    return entries


def law_entries() -> dict[str, Entry]:
    """Return how laws do on held-out problems."""
    page, cell = "laws/README.md", r"[^|]*\| (\d+)"
    return {
        "AutoFailed": Entry(
            text_number(page, r"`Auto`, one setting \| (\d+) of 41"), page, "Auto failed, of 41"
        ),
        "PiFailed": Entry(
            text_number(page, f"PI, published ki = 1e-4 {cell}"), page, "published gains failed"
        ),
    }


if __name__ == "__main__":
    main()
