"""Objectives of a search: names, directions, and values that a run does not have."""

import json

import pytest

from controlvae.errors import UserError
from controlvae.lab.evaluation.registry import find_metric
from controlvae.lab.evaluation.search_objective import _SHORT_NAMES, find_objective
from controlvae.lab.runs.folder import RunFolder


def test_short_names_are_metrics_with_a_direction():
    for name, paths in _SHORT_NAMES.items():
        found = find_objective(name)
        assert {find_metric(path).better for path in paths} == {found.better}
        assert found.paths == paths
        assert not found.is_curve
    assert find_objective("dci.completeness").better == "higher"
    assert [find_objective(name).better for name in ("elbo", "reconstruction")] == [
        "higher",
        "lower",
    ]
    assert find_objective("elbo").is_curve


@pytest.mark.parametrize("name", ["kl", "active_units", "train.elbo", "fid.samples", ""])
def test_numbers_without_a_direction_are_no_objectives(name):
    with pytest.raises(UserError, match="no objective"):
        find_objective(name)


def test_missing_values_are_explained_and_infinite_ones_are_none(tmp_path):
    run = RunFolder(tmp_path)
    metrics = {
        "step": 1,
        "mig_sampled": {"skipped": "none of the factors is a quantity"},
        "dci": {"completeness": 0.25, "disentanglement": None},
    }
    run.metrics_file.write_text(json.dumps(metrics))
    with pytest.raises(UserError, match="none of the factors is a quantity"):
        find_objective("mig").read(run)
    with pytest.raises(UserError, match="fid was not measured"):
        find_objective("fid").read(run)
    assert find_objective("dci").read(run) is None
    assert find_objective("dci.completeness").read(run) == 0.25
    run.validation_file.write_text(
        '{"step": 1, "elbo": -2.0, "reconstruction": 1.5}\n'
        '{"step": 2, "elbo": -1.0, "reconstruction": 0.5}\n'
    )
    assert find_objective("elbo").read(run) == -1.0
    assert find_objective("reconstruction").read(run) == 0.5
