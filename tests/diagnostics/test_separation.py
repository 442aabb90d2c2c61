"""The label-free rule, against the committed runs that it was tested on."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from controlvae.diagnostics.separation import latent_separation, predicts_failure

RESULTS = Path(__file__).parents[2] / "results" / "disentangling"


def runs(name):
    with (RESULTS / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def kl_at_the_deciding_step(row):
    return [float(value) for value in row["kl_per_latent_60000"].split()]


def counts(rows):
    """Return the number of failed runs, of those flagged, of good runs, and of those flagged."""
    flagged = [predicts_failure(kl_at_the_deciding_step(row)) for row in rows]
    failed = [row["failed_mig"] == "1" for row in rows]
    pairs = list(zip(failed, flagged, strict=True))
    return sum(failed), pairs.count((True, True)), failed.count(False), pairs.count((False, True))


def test_rule_finds_the_failed_runs_of_the_fresh_seeds():
    rows = runs("fresh-seeds.csv")
    assert counts(rows) == (16, 16, 184, 4)
    # KL = 16 repeats KL = 18 up to this step.
    assert counts([row for row in rows if row["preset"] != "shapes2d-control-16"]) == (
        10,
        10,
        140,
        3,
    )


def test_rule_finds_the_failed_run_of_full_length():
    rows = runs("fresh-seeds-full.csv")
    failed = {row["seed"] for row in rows if row["failed_mig"] == "1"}
    flagged = {row["seed"] for row in rows if predicts_failure(kl_at_the_deciding_step(row))}
    assert failed == {"307"}
    assert failed <= flagged


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_order_and_kind_do_not_matter(kind):
    assert latent_separation(kind([0.1, 0.8, 0.0, 1.0])) == pytest.approx(0.7)
    assert latent_separation(kind([1.0, 0.1, 0.8, 0.0])) == pytest.approx(0.7)


def test_runs_of_the_issue():
    """One run that goes well, and two that fail with the same total KL."""
    assert not predicts_failure([0.98, 0.97, 0.0])
    assert predicts_failure([1.03, 0.70, 0.24])
    assert predicts_failure([0.94, 0.35, 0.34, 0.32])


@pytest.mark.parametrize("nats", [[1.0, 0.5], [0.0, 0.0, 0.0], [1.0, math.nan, 0.0]])
def test_unusable_values_are_refused(nats):
    with pytest.raises(ValueError, match="kl_per_latent"):
        predicts_failure(nats)
