"""The summary of a sweep and the bound on gains over the plain VAE."""

import csv
import json

import pytest
from logged_runs import logged_run

from controlvae.lab.reports.elbo_bound import BaselinePair, plot_elbo_bound
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
