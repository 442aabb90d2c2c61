"""Specifications of the paper's tables: presets, equal terms and printed numbers."""

import statistics

import pytest

from controlvae.lab.config import PRESETS, RenamedWarning, preset
from controlvae.lab.engines.select import shared_settings
from controlvae.paper.figures import paper_result
from controlvae.paper.table_writer import write_table
from controlvae.paper.tables import TABLES


def test_rows_name_existing_presets_and_columns():
    for table in TABLES.values():
        assert {row.preset for row in table.rows} <= set(PRESETS)
        for row in table.rows:
            assert row.printed.keys() <= table.columns.keys()


@pytest.mark.parametrize("name", ["table-laptop", "table-matched", "table-short"])
def test_equal_terms_differ_in_objective_and_law_only(name):
    terms = [shared_settings(preset(row.preset)) | {"objective": None} for row in TABLES[name].rows]
    assert all(each == terms[0] for each in terms)


@pytest.mark.parametrize("name", ["table-mig", "table-rmig"])
def test_unequal_terms_are_described(tmp_path, name):
    experiments = [preset(row.preset) for row in TABLES["table-mig"].rows]
    assert len({experiment.model for experiment in experiments}) == 3
    text = write_table(TABLES[name], {}, tmp_path)
    for experiment in experiments:
        assert f"{experiment.training.steps:,}" in text
        assert f"{experiment.optimiser.rate:.4f}" in text


def test_printed_rmig_is_the_mean_over_factors():
    for row in TABLES["table-rmig"].rows:
        factors = [row.printed[name].mean for name in ("x", "y", "shape", "scale", "orientation")]
        assert statistics.fmean(factors) == pytest.approx(row.printed["RMIG"].mean, abs=1e-4)


def test_former_table_name_is_accepted_with_a_warning():
    with pytest.warns(RenamedWarning, match="table-weighted"):
        assert paper_result("table-prices") is TABLES["table-weighted"]
