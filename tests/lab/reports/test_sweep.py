"""The summary of a sweep and the bound on gains over the plain VAE."""

import csv
import json
import math
import re

import pytest
from logged_runs import logged_run

from controlvae.lab.reports.elbo_bound import BaselinePair, plot_elbo_bound
from controlvae.lab.reports.elbo_cost import COST_HEADS
from controlvae.lab.reports.page import write_report
from controlvae.lab.reports.sweep import FinalValues, plot_sweep, write_sweep


def test_initial_spike_does_not_flatten_the_curves(tmp_path):
    folder = logged_run(tmp_path, "shapes2d-quick", 1, 20_000)
    first, *rest = folder.log_file.read_text().splitlines()
    spike = json.dumps({**json.loads(first), "kl": 60_000.0})
    folder.log_file.write_text("\n".join([spike, *rest]) + "\n")
    figure = plot_sweep({"one": [folder]}, {"one": [None]}, "the training batches")
    low, high = figure.axes[-1].get_ylim()
    assert 4 < low < 4.5  # the rest lies between the KL of 4.5 and its target of 5
    assert 5 < high < 5.5


def test_sweep_records_what_its_fid_depends_on(tmp_path):
    """Seeds may differ in the number of samples, and a setting may have no FID at all."""
    record = {
        "pictures": 50,
        "reference_pictures": 1_200,
        "split": "test",
        "extractor": "Inception",
        "resize": "to 299",
        "of": "samples",
        "samples": {"score": 71.5, "estimator": "FID"},
    }
    measured = {"step": 3_000, "examples": 900, "split": "all"}
    measured |= {"kl": 3.0, "reconstruction": 6.0, "elbo": -9.0}
    measured["kid"] = {"samples": {"score": 0.1, "estimator": "KID"}}
    settings = {"a": [record, {**record, "pictures": 60}], "b": [{"skipped": "not requested"}]}
    runs = {}
    for name, fids in settings.items():
        seeds = range(len(fids))
        path = tmp_path / name
        runs[name] = [logged_run(path, "cifar10-vae", s, 3_000, elbo=-9.0) for s in seeds]
        for folder, fid in zip(runs[name], fids, strict=True):
            folder.metrics_file.write_text(json.dumps({**measured, "fid": fid}))
    write_sweep(runs, tmp_path)
    a, b = csv.DictReader((tmp_path / "sweep.csv").open())
    names = ("mean", "pictures", "reference pictures", "split", "extractor", "resize")
    heads = [f"fid {name}" for name in names]
    assert [a[head] for head in heads] == ["71.5", "50; 60", "1200", "test", "Inception", "to 299"]
    assert [b[head] for head in heads] == [""] * 6
    ends = {
        name: [FinalValues(3.0, 6.0, -9.0, 1.0, 71.5) for _ in own] for name, own in runs.items()
    }
    panel = plot_sweep(runs, ends, "900 examples").axes[2]
    reference = "samples against 1,200 examples (test)"
    assert panel.get_ylabel() == "FID"
    assert panel.get_title("left") == f"50 {reference} or 60 {reference}"


@pytest.mark.parametrize("d", [1.0, 8.0, 40.0])
def test_band_ends_where_the_papers_does(d):
    """At 10 nats it ends 2 + 2 sqrt(2 * 10 + 1) above the plain VAE."""
    pairs = [BaselinePair("one", 1, 10.0, d, 0.5)]
    left, right = plot_elbo_bound(pairs, ["one"], "the training batches").axes
    (band,) = (patch for patch in right.patches if patch.get_label() == "the paper's band")
    assert (band.get_x(), band.get_width()) == pytest.approx((0, 2 + 2 * 21**0.5))
    for axis in (left, right):
        assert axis.get_xlim()[1] > max(d, 2 + 2 * 21**0.5)


def sweep_with_plain_vae(path, latents, **controlled):
    """Return runs of a sweep by setting: a plain VAE of two seeds with a KL of 4.5, and others."""
    ends = {"plain VAE": ("shapes2d-quick-vae", {"elbo": -20.0})}
    ends |= {name: ("shapes2d-quick", values) for name, values in controlled.items()}
    terms = {"p": 0.0, "i": 0.0, "kl_per_latent": latents}
    return {
        name: [
            logged_run(path / name, preset, seed, 1_000, False, **values, **terms)
            for seed in (1, 2)
        ]
        for name, (preset, values) in ends.items()
    }


def reconstruction_of_last_lines(folder):
    """Return the reconstruction over the last tenth of the steps: here, the last line."""
    return folder.records()[-1]["reconstruction"]


def test_sweep_shows_predicted_cost_beside_the_measured_one(tmp_path):
    runs = sweep_with_plain_vae(
        tmp_path, [2.0, 2.499, 0.001], far={"kl": 8.5, "elbo": -25.0}, same={"elbo": -20.0}
    )
    lines = write_sweep(runs, tmp_path, "plain VAE")
    plain, far, same = csv.DictReader((tmp_path / "sweep.csv").open())
    assert [plain[head] for head in COST_HEADS] == [""] * 4
    # Two latents are used: n/2 (x - 1 + exp(-x)) with n = 2 and x = 2 * 4 / 2.
    expected = 4 - 1 + math.exp(-4)
    assert far["used latents of the plain VAE"] == "2"
    assert float(far["predicted elbo cost mean"]) == pytest.approx(expected, abs=1e-5)
    measured = [
        4 + reconstruction_of_last_lines(run) - reconstruction_of_last_lines(vae)
        for run, vae in zip(runs["far"], runs["plain VAE"], strict=True)
    ]
    assert float(far["elbo cost mean"]) == pytest.approx(sum(measured) / 2, abs=1e-4)
    assert f"nats of ELBO, predicted {expected:.2f}" in lines[1]
    assert "costs" not in lines[0]
    assert float(same["predicted elbo cost mean"]) == 0
    assert (
        "elbo cost mean" not in (write_sweep(runs, tmp_path), tmp_path / "sweep.csv")[1].read_text()
    )


def test_a_collapsed_plain_vae_has_no_prediction(tmp_path):
    runs = sweep_with_plain_vae(tmp_path, [0.001, 0.002, 0.001], one={"kl": 6.0, "elbo": -22.0})
    lines = write_sweep(runs, tmp_path, "plain VAE")
    row = list(csv.DictReader((tmp_path / "sweep.csv").open()))[1]
    assert row["used latents of the plain VAE"] == "0"
    assert row["predicted elbo cost mean"] == ""
    assert "nats of ELBO, no prediction" in lines[1]


def test_report_has_a_table_of_costs(tmp_path):
    runs = sweep_with_plain_vae(tmp_path, [2.0, 2.499, 0.001], far={"kl": 8.5, "elbo": -25.0})
    folders = [folder for own in runs.values() for folder in own]
    page = write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    table = page[page.index("<h2>Cost in ELBO</h2>") :]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table[: table.index("</table>")])
    assert cells.count("5.00") == 2  # measured, both seeds
    assert cells.count("3.02") == 2  # predicted
    assert cells.count("4.00") == 2  # KL above the plain VAE's
    alone = write_report(runs["far"], tmp_path / "alone.html").read_text(encoding="utf-8")
    assert "Cost in ELBO" not in alone
