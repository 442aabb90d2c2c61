"""Self-repair: one sabotage of each kind, clean runs that nothing touches, and the rollback."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from subjects import Examples, VectorVAE, fit_arguments, make_rows
from tiny import assert_same_run, sets

import controlvae as cv
from controlvae import lab
from controlvae.errors import Diverged, UserError
from controlvae.lab.cli.repair_options import check_choice
from controlvae.lab.config import override, preset
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.repair.remedies import choose_remedy
from controlvae.lab.training.repair.settings import parse_repair
from controlvae.lab.training.repair.symptoms import Symptom, find_symptom

QUIET = {"progress": False, "threads": 1, "device": "cpu", "checkpoint_every": 0.2}
STEPS = 500


def fit(sabotage, run, subject="vector", repair=True, **more):
    """Fit a small user-supplied model to sabotaged data."""
    model, data, settings = fit_arguments(subject, sabotage, seed=1)
    settings |= {"steps": STEPS, **more}
    return lab.fit(model, data, run=run, repair=repair, **settings, **QUIET)


@pytest.mark.parametrize(
    ("sabotage", "subject", "symptom", "changed"),
    [
        ("mean for sum", "vector", "wrong units", "model.reconstruction_scale"),
        ("mean for sum", "picture", "wrong units", "model.reconstruction_scale"),
        ("bad batches", "vector", "corrupt examples", "training.skip"),
        ("NaN images", "picture", "corrupt examples", "training.skip"),
        ("half overflow", "vector", "half precision", "training.half"),
    ],
)
def test_sabotaged_run_is_repaired_in_one_setting(tmp_path, sabotage, subject, symptom, changed):
    run = fit(sabotage, tmp_path / "run", subject)
    (repair,) = run.repairs
    assert (repair.symptom, repair.changed) == (symptom, (changed,))
    assert run.step == STEPS
    # The start stays readable, and differs from the present settings in that one setting alone.
    before, after = run.folder.first_experiment(), run.folder.experiment()
    assert before != after
    part, name = changed.split(".")
    same = replace(getattr(after, part), **{name: getattr(getattr(before, part), name)})
    assert replace(after, **{part: same}) == before
    # Log and events tell the truth: every step once, and the repair.
    steps = run.log["step"]
    assert steps == sorted(set(steps))
    assert [e["symptom"] for e in run.folder.events() if e["event"] == "repaired"] == [symptom]
    assert json.loads((run.folder.path / "repairs.json").read_text())["repairs"]


def test_skipped_examples_are_the_corrupt_ones(tmp_path):
    rows = make_rows(1)
    # The data is tried at 64 places before training starts. 1,999 is one of them.
    rows[[300, 1_234, 1_999]] = float("nan")
    settings = {"law": cv.Auto(8.0, reach_in=200), "steps": 200, "likelihood": lab.Gaussian(0.01)}
    data = Examples(rows)
    run = lab.fit(VectorVAE, data, run=tmp_path / "run", repair=True, **settings, **QUIET)
    assert run.experiment.training.skip == (300, 1_234, 1_999)
    assert run.available == len(rows) - 3
    with pytest.raises(UserError, match="index 1999 contains NaN"):
        lab.fit(VectorVAE, data, run=tmp_path / "no", **settings, **QUIET)


def test_module_that_is_trained_in_place_recovers_from_nan(tmp_path):
    rows = make_rows(1)
    rows[700] = float("nan")
    settings = {"law": cv.Auto(8.0, reach_in=200), "steps": 150, "likelihood": lab.Gaussian(0.01)}
    model = VectorVAE()
    run = lab.fit(model, Examples(rows), run=tmp_path / "run", repair=True, **settings, **QUIET)
    assert [one.symptom for one in run.repairs] == ["corrupt examples"]
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert all(
        value.equal(run.model.state_dict()[name]) for name, value in model.state_dict().items()
    )


def test_large_learning_rate_is_found_and_lowered(tmp_path):
    # At this rate the code of this network dies within the first steps.
    overrides = {
        **{"training.steps": 400, "training.batch": 16, "training.log_every": 5},
        **{"data.images": 2000, "model.channels": "(8,8,8)", "model.hidden": 64},
        **{"control": "Auto(12.0, reach_in=200)", "optimiser.rate": 3e-2},
    }
    run = lab.train(
        "shapes2d-quick", overrides=overrides, run=tmp_path / "run", repair=True, **QUIET
    )
    assert run.repairs
    assert {path for one in run.repairs for path in one.changed} == {"optimiser.rate"}
    assert run.experiment.optimiser.rate < 3e-2
    assert run.folder.events()[-1]["event"] == "finished"
    assert len(list((tmp_path / "run" / "checkpoint").glob("step-*"))) == 2


def test_repair_does_not_touch_a_clean_run(tmp_path):
    fit("", tmp_path / "off", repair=False, steps=300)
    run = fit("", tmp_path / "on", steps=300)
    assert run.repairs == []
    assert not (tmp_path / "on" / "repairs.json").exists()
    assert_same_run(tmp_path / "off", tmp_path / "on")
    assert RunFolder(tmp_path / "off").experiment() == RunFolder(tmp_path / "on").experiment()


def test_repaired_run_resumes_with_its_repair(tmp_path):
    whole = fit("bad batches", tmp_path / "whole")
    steps = iter(range(10_000))

    def interrupt(progress):
        if progress.step > 300 and (tmp_path / "part" / "repairs.json").exists():
            raise KeyboardInterrupt
        next(steps)

    model, data, settings = fit_arguments("vector", "bad batches", seed=1)
    settings["steps"] = STEPS
    with pytest.raises(KeyboardInterrupt):
        lab.fit(
            model,
            data,
            run=tmp_path / "part",
            repair=True,
            callbacks=interrupt,
            **settings,
            **QUIET,
        )
    resumed = lab.resume(tmp_path / "part", model, data, **QUIET)
    assert resumed.experiment == whole.experiment
    assert len(resumed.repairs) == 1
    assert_same_run(tmp_path / "whole", tmp_path / "part")


def test_limit_of_repairs_ends_with_one_line(tmp_path):
    with pytest.raises(Diverged, match="limit") as caught:
        fit("", tmp_path / "run", learning_rate=1e9, repair=lab.Repair(limit=2))
    assert "\n" not in str(caught.value)
    assert len(RunFolder(tmp_path / "run").repairs()) == 2


def test_killed_process_is_resumed_by_its_supervisor(tmp_path):
    words = ["train", "shapes2d-quick", "--unattended", "--run", str(tmp_path / "run")]
    words += sets("training.steps=300", "training.batch=16", "training.log_every=10")
    words += sets("data.images=256", "model.channels=(4,4,4)", "model.hidden=16")
    words += ["--device", "cpu", "--checkpoint-every", "0.1s", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "controlvae", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    saved = tmp_path / "run" / "checkpoint"
    ends = time.monotonic() + 120
    while checkpoint.latest_step(saved) is None and time.monotonic() < ends:
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert "SIGKILL; resuming" in errors
    run = RunFolder(tmp_path / "run")
    assert [one.symptom for one in run.repairs()] == ["killed"]
    assert run.events()[-1]["event"] == "finished"


def line(step, reconstruction=30.0, kl=8.0, beta=1.0, sd=0.3, saturated=0.0, target=8.0):
    """Return a line of a log."""
    return {
        **{"step": step, "reconstruction": reconstruction, "kl": kl, "beta": beta},
        **{"kl_sd": sd, "saturated": saturated, "target": target},
    }


def test_detectors_name_symptoms_and_their_beginnings():
    experiment = override(preset("shapes2d-quick"), ["control=Auto(8.0)"])
    calm = [line(10 * n, 30 + (n % 3)) for n in range(1, 21)]
    assert find_symptom(calm, experiment) is None
    burst = [*calm, *(line(10 * n, 300.0, kl=9.0) for n in range(21, 26))]
    assert find_symptom(burst, experiment) == Symptom(
        "burst", 200, find_symptom(burst, experiment).evidence
    )
    # A jump that a larger weight explains, and one that is over again, are none.
    explained = [*calm, *(line(10 * n, 300.0, beta=50.0) for n in range(21, 26))]
    assert find_symptom(explained, experiment) is None
    assert find_symptom([*burst[:-1], line(250)], experiment) is None
    # The answer of the controller to the jump lasts for one line.
    answered = [*calm, line(210, 300.0, kl=9.0, beta=5.0), *burst[-4:]]
    assert find_symptom(answered, experiment).kind == "burst"
    dead = [*calm, *(line(10 * n, kl=1e-3, beta=1e-5, sd=1e-4) for n in range(21, 42))]
    found = find_symptom(dead, experiment)
    assert (found.kind, found.since) == ("dead code", 200)
    wild = [*calm, *(line(10 * n, kl=1e5, beta=1e3) for n in range(21, 32))]
    assert find_symptom(wild, experiment).kind == "divergence"


def test_collapse_at_a_lower_bound_lowers_the_bound():
    experiment = override(preset("text-quick"), ["control=PI(4.0, beta_min=1.0, beta_max=2.0)"])
    stuck = [
        line(10 * n, kl=0.02, beta=1.0, sd=0.01, saturated=1.0, target=4.0) for n in range(1, 30)
    ]
    symptom = find_symptom(stuck, experiment)
    assert symptom.kind == "collapse"
    remedy = choose_remedy(symptom, experiment)
    assert remedy.experiment.control.bounds == (0.0, 2.0)
    # A code that grows is left alone.
    grows = [
        line(10 * n, kl=0.01 + 0.005 * n, beta=1.0, sd=0.01, saturated=1.0, target=4.0)
        for n in range(1, 30)
    ]
    assert find_symptom(grows, experiment) is None


@pytest.mark.parametrize("rate", ["0.01", "Points((10, 20), (0.01, 0.02))", "Linear(0.1, 0.2, 9)"])
def test_lowered_rate_is_a_tenth_at_every_step(rate):
    experiment = override(preset("shapes2d-quick"), [f"optimiser.rate={rate}"])
    remedy = choose_remedy(Symptom("burst", 0, ""), experiment)
    for step in (1.0, 15.0, 100.0):
        before, after = experiment.optimiser.at(step), remedy.experiment.optimiser.at(step)
        assert after == pytest.approx(before / 10)


def test_corrupt_repairs_and_wrong_arguments_are_one_line(tmp_path):
    run = fit("mean for sum", tmp_path / "run", steps=40)
    (run.folder.path / "repairs.json").write_text('{"repairs": [{"step": "x"}]}')
    with pytest.raises(UserError, match=r"repairs\.json is corrupt"):
        lab.load_run(tmp_path / "run")
    with pytest.raises(UserError, match="repair takes"):
        parse_repair("yes")
    with pytest.raises(UserError, match="limit"):
        lab.Repair(limit=0)
    with pytest.raises(UserError, match="no-repair"):
        check_choice(False, True, None, None)
    with pytest.raises(UserError, match="devices"):
        check_choice(True, False, 4, None)


def test_report_tells_of_repairs(tmp_path):
    run = fit("mean for sum", tmp_path / "run", steps=60)
    page = Path(
        lab.report([run], tmp_path / "report.html", examples=100, progress=False)
    ).read_text()
    assert '<section id="repairs">' in page
    assert "multiplied by 64" in page


def test_ring_keeps_old_checkpoints_at_growing_distances():
    steps: list[int] = []
    for step in range(10, 2_000, 10):
        steps = checkpoint.spread_steps([step, *steps], 6)
        assert steps[:2] == [step, step - 10][: len(steps)]
        assert steps[-1] == 10
    ages = [2_000 - step for step in steps]
    assert ages == sorted(ages)
    assert torch.tensor(ages).diff().max() < 1_400
