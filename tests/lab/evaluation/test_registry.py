"""The registry of metrics: complete, consistent, and the only place to add a score."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from controlvae.lab.data.factors import Factors
from controlvae.lab.evaluation.disentanglement import (
    DisentanglementScore,
    LabelledCodes,
    compute_scores,
)
from controlvae.lab.evaluation.registry import (
    GROUPS,
    SCORE_METRICS,
    entry_name,
    find_metric,
)
from controlvae.lab.evaluation.scores import DISENTANGLEMENT_SCORES
from controlvae.lab.runs.folder import nested_value
from controlvae.paper.tables import TABLES

EVALUATED = Path(__file__).parents[2] / "data" / "runs-0.1" / "evaluated" / "metrics.json"
# Columns of paper tables that describe a metric and are not metrics themselves.
DESCRIPTIONS = {
    "best.step",
    "dialog.responses",
    *(f"fid.{key}" for key in ("pictures", "reference_pictures", "split", "extractor", "resize")),
}


def test_paths_are_unique_within_a_group():
    for group in GROUPS:
        paths = [metric.path for metric in group.metrics]
        assert len(set(paths)) == len(paths)


def test_paths_exist_in_metrics_of_version_0_1():
    metrics = json.loads(EVALUATED.read_text(encoding="utf-8"))
    for group in GROUPS:
        for metric in group.metrics:
            key = metric.path.partition(".")[0]
            record = metrics.get(key)
            if record is None or (isinstance(record, dict) and "skipped" in record):
                continue
            parent, _, last = metric.path.rpartition(".")
            assert last in (nested_value(metrics, parent) if parent else metrics), metric.path


def test_every_metric_of_a_paper_table_is_registered():
    for table in TABLES.values():
        for path in (*table.columns.values(), *table.more.values()):
            if ".per_factor." not in path and path not in DESCRIPTIONS:
                assert find_metric(path).path == path


def test_best_weights_share_the_metric_of_the_last():
    last, best = find_metric("elbo"), find_metric("best.elbo")
    assert (best.name, best.better) == ("ELBO, best by validation", last.better)
    with pytest.raises(KeyError, match=r"mig\.scroe"):
        find_metric("mig.scroe")


def test_numbers_are_formatted_by_their_metric():
    assert find_metric("kid.samples.score").format(0.01234) == "12.34"
    assert find_metric("likeness.ssim").format(0.98765) == "0.988"


def test_scores_have_names_and_a_direction():
    assert [entry_name(score.key) for score in DISENTANGLEMENT_SCORES][:3] == [
        "MIG, sampled",
        "RMIG",
        "MIG, histogram",
    ]
    assert {metric.better for metric in SCORE_METRICS} == {"higher"}
    assert entry_name("bits_per_dimension") == "bits per dimension"


def test_a_new_score_needs_one_entry():
    @dataclass(frozen=True)
    class Result:
        score: float

    def compute(codes, progress):
        progress(0.5)
        return Result(float(codes.means.mean()))

    factors = Factors(("shape",), torch.tensor([[0], [1]]).numpy(), unordered=("shape",))
    codes = LabelledCodes(torch.ones(2, 3), None, factors)
    shares = []
    scores = (
        DisentanglementScore("mean", "mean code", compute),
        DisentanglementScore("width", "width", compute, needs_log_variances=True),
        DisentanglementScore("slope", "slope", compute, needs_quantities=True),
    )
    results = compute_scores(codes, scores, shares.append)
    assert results["mean"] == {"score": 1.0}
    assert "log-variances" in results["width"]["skipped"]
    assert "quantity" in results["slope"]["skipped"]
    assert shares == sorted(shares)
    assert shares[-1] == 1
