"""The table and the examples of dialog responses, written from run folders."""

import pytest
from evaluated_runs import evaluated_run

from controlvae.paper.dialog_examples import write_examples
from controlvae.paper.figures import paper_result
from controlvae.paper.table_writer import write_table

SAMPLE = {
    "topic": "pets",
    "context": ["A: a cat", "B: yes"],
    "reference": "old | cat",
    "responses": ["x|y", "z"],
}


@pytest.fixture
def runs(tmp_path):
    """Create evaluated runs of two of the four methods."""
    dialog = {"distinct_1": 6_150, "paper_perplexity": 12.5, "samples": [SAMPLE]}
    return {
        name: [evaluated_run(tmp_path / name, {"step": 69_000, "kl": kl, "dialog": dialog}, name)]
        for name, kl in (("dialog-control-25", 25.2), ("dialog-cost", 16.0))
    }


def test_counts_are_compared_with_printed_numbers(tmp_path, runs):
    text = write_table(paper_result("table-dialog"), runs, tmp_path)
    assert "| ControlVAE (KL = 25) | 1 | 69,000 | 6150 (paper 6100 ± 60, +50) |" in text
    assert "16.00 (paper 17.00, -1.00)" in text
    assert "falls as the KL rises" in text


def test_examples_have_a_column_per_evaluated_method(tmp_path, runs):
    text = write_examples(paper_result("dialog-examples"), runs, tmp_path)
    assert "| ControlVAE (KL = 25) | cost annealing |" in text
    assert r"| x\|y | x\|y |" in text
    assert "Not evaluated yet: ControlVAE (KL = 35), cyclical annealing" in text
    assert (tmp_path / "dialog-examples.md").read_text() == text


def test_responses_to_other_contexts_are_not_shown(tmp_path, runs):
    other = {**SAMPLE, "context": ["A: a dog"]}
    metrics = {"step": 9, "kl": 20.0, "dialog": {"samples": [other]}}
    runs["dialog-cyclical"] = [evaluated_run(tmp_path / "other", metrics, "dialog-cyclical")]
    text = write_examples(paper_result("dialog-examples"), runs, tmp_path)
    assert r"| x\|y | x\|y | – |" in text
