"""Run folders written by version 0.1.0 still open, resume and report.

`tests/data/runs-0.1` holds runs of tiny models that 0.1.0 stopped at step 20 of 40. Next to each
is `expected-log.jsonl`, the log that 0.1.0 wrote when it resumed the same run itself.
"""

import json
import shutil
from pathlib import Path

import pytest
from command import within

OLD_RUNS = Path(__file__).parents[2] / "data" / "runs-0.1"
STOPPED = ["staggered", "images", "factor", "text", "dialog"]


@pytest.fixture
def old_run(request, tmp_path):
    """Copy the run folder named by the test's parameter to where it may be written to."""
    return Path(shutil.copytree(OLD_RUNS / request.param, tmp_path / request.param))


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("old_run", STOPPED, indirect=True)
def test_old_run_resumes_with_the_same_numbers(old_run, tmp_path):
    done = within("resume", old_run, "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    resumed, expected = read_log(old_run / "log.jsonl"), read_log(old_run / "expected-log.jsonl")
    assert [line["step"] for line in resumed] == [line["step"] for line in expected]
    for new, old in zip(resumed, expected, strict=True):
        assert new.keys() == old.keys()
        for name, value in old.items():
            # Another processor may round differently, so the logs need not agree to the last bit.
            assert new[name] == pytest.approx(value, rel=1e-3, abs=1e-4), (new["step"], name)


@pytest.mark.parametrize("old_run", ["images", "text"], indirect=True)
def test_old_run_resumes_without_a_warning(old_run, tmp_path):
    done = within("resume", old_run, "--device", "cpu", cwd=tmp_path)
    assert "renamed" not in done.stderr


@pytest.mark.parametrize("old_run", ["evaluated"], indirect=True)
def test_old_metrics_are_shown_and_reported(old_run, tmp_path):
    done = within("report", old_run, "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    old = json.loads((OLD_RUNS / "evaluated" / "metrics.json").read_text())
    new = json.loads((old_run / "metrics.json").read_text())
    assert new["kl"] == old["kl"]
    assert new["elbo"] == old["elbo"]


@pytest.mark.parametrize("old_run", ["staggered"], indirect=True)
def test_old_run_branches(old_run, tmp_path):
    done = within(
        "branch", old_run, tmp_path / "branch", "--set", "training.steps=60", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "branch" / "experiment.json").exists()
