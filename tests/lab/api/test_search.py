"""Searches from Python and the shell, with real training."""

import csv
import os
import signal
import subprocess
import time

import pytest
from command import ONE_THREAD, command, within
from custom_models import groups
from tiny import sets

import controlvae as cv
from controlvae import lab
from controlvae.errors import Interrupted, UserError
from controlvae.lab.runs.folder import look_up

pytest.importorskip("optuna", reason="pip install 'controlvae[search]'")

SMALL = {
    "training.steps": 60,
    "training.batch": 16,
    "training.log_every": 5,
    "data.images": 160,
    "model.channels": (4, 4, 4),
    "model.hidden": 16,
}
SETS = sets(*(f"{path}={value}" for path, value in SMALL.items()))
QUIET = {"device": "cpu", "progress": False, "threads": 1}


def trained_alone(run, tmp_path):
    """Train the experiment of a trial again, as a run of its own."""
    return lab.train(run.experiment(), run=tmp_path / "alone", **QUIET)


def test_a_search_is_extended_and_its_values_are_those_of_plain_runs(tmp_path):
    arguments = {"overrides": SMALL, "run": tmp_path / "s", "prune": "none", **QUIET}
    space = {"control.target": (4, 20), "optimiser.rate": (1e-3, 1e-2, "log")}
    first = lab.search("shapes2d-quick", space, trials=2, **arguments)
    assert [trial.state for trial in first.trials] == ["finished"] * 2
    result = lab.search("shapes2d-quick", space, trials=4, **arguments)
    assert [trial.value for trial in result.trials[:2]] == [trial.value for trial in first.trials]
    assert len(result.trials) == 4
    best = max(result.trials, key=lambda trial: trial.value)
    assert result.best == best
    plain = trained_alone(best.run, tmp_path)
    assert best.run.log_file.read_bytes() == plain.folder.log_file.read_bytes()
    assert best.value == plain.folder.validations()[-1]["elbo"]
    assert best.run.experiment().control.target == best.settings["control.target"]
    assert result.load_best().step == 60
    rows = list(csv.DictReader((tmp_path / "s" / "search.csv").open()))
    assert [float(row["elbo"]) for row in rows] == [trial.value for trial in result.trials]
    page = result.report(tmp_path / "page.html").read_text()
    assert f"trial {best.number} with elbo {best.value:.5g}" in page
    assert page.count("<svg") == 4  # history, slices, parallel lines and curves
    assert "from ten finished trials on" in page


def test_pruned_and_diverged_trials_count_and_are_avoided(tmp_path):
    space = {"optimiser.rate": ["1e-2", "3e-3", "1e-8", "1e25"]}
    result = lab.search(
        "shapes2d-quick",
        space,
        trials=14,
        overrides={**SMALL, "control": "Constant(1)"},
        run=tmp_path,
        **QUIET,
    )
    by_rate = {}
    for trial in result.trials:
        by_rate.setdefault(trial.settings["optimiser.rate"], []).append(trial)
    assert {trial.state for trial in by_rate["1e25"]} == {"diverged"}
    assert "pruned" in {trial.state for trial in by_rate["1e-8"]}
    for trial in result.trials:
        step = trial.run.last_record()["step"] if trial.run.last_record() else 0
        assert (step < 60) == (trial.state in ("pruned", "diverged"))
        if trial.state == "pruned":
            assert step >= 20  # a third of the steps
            assert trial.run.events()[-1]["event"] == "stopped"  # and may be resumed by hand
    assert result.best.settings["optimiser.rate"] in ("1e-2", "3e-3")
    good = [len(by_rate.get(rate, [])) for rate in ("1e-2", "3e-3")]
    assert sum(good) > 7


def test_a_killed_search_is_resumed_from_its_checkpoint(tmp_path):
    steps = ["training.steps=600", "training.log_every=10"]
    words = ["search", "shapes2d-quick", *SETS, *sets(*steps), "--vary", "control.target=6:7"]
    words += ["--trials", "2", "--run", tmp_path / "s", "--device", "cpu", "--prune", "none"]
    words += ["--checkpoint-every", "0.05s"]
    run = tmp_path / "s" / "trial-000"
    process = subprocess.Popen(
        command(*words), env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and not list(run.glob("checkpoint/step-*")):
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert list(run.glob("checkpoint/step-*"))
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trial 0: its worker is gone; its run will be resumed" in done.stderr
    folder = lab.RunFolder(run)
    (resumed,) = [event for event in folder.events() if event["event"] == "resumed"]
    assert resumed["step"] > 0
    plain = trained_alone(folder, tmp_path)
    assert folder.log_file.read_bytes() == plain.folder.log_file.read_bytes()
    rows = list(csv.DictReader((tmp_path / "s" / "search.csv").open()))
    assert [row["state"] for row in rows] == ["finished", "finished"]
    assert not list((tmp_path / "s" / "workers").iterdir())  # that of the killed one is gone too


def test_ctrl_c_and_a_time_limit_leave_the_trial_to_the_next_call(tmp_path):
    settings = {**SMALL, "training.steps": 200}
    arguments = {"overrides": settings, "run": tmp_path, "trials": 2, "prune": "none"}
    arguments |= {"device": "cpu", "threads": 1}
    space = {"control.target": (4, 20)}

    def interrupt(update):
        if getattr(update, "step", 0) >= 50:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="0 of 2 trials done"):
        lab.search("shapes2d-quick", space, progress=interrupt, **arguments)
    assert not list((tmp_path / "workers").iterdir())
    stopped = lab.RunFolder(tmp_path / "trial-000")
    assert 0 < stopped.events()[-1]["step"] < 200
    limited = lab.search("shapes2d-quick", space, progress=False, time_limit=0.05, **arguments)
    assert limited.trials[0].state == "waiting"
    assert limited.best is None
    result = lab.search("shapes2d-quick", space, progress=False, **arguments)
    assert [trial.state for trial in result.trials] == ["finished", "finished"]
    assert result.trials[0].attempts == 1  # a stop is no loss
    assert "resumed" in [event["event"] for event in stopped.events()]


def test_objectives_are_numbers_of_the_evaluation_or_of_a_function(tmp_path):
    space = {"control.target": [6, 12]}
    result = lab.search(
        "shapes2d-quick",
        space,
        objective="ssim",
        trials=2,
        overrides=SMALL,
        run=tmp_path / "ssim",
        **QUIET,
    )
    for trial in result.trials:
        assert trial.value == look_up(trial.run.metrics(), "likeness.ssim")
        assert trial.run.experiment().training.validation == 0  # nothing needs held-out examples
    defined = lab.define(
        torch_model, groups(256), law=cv.Auto(2.0), steps=40, likelihood="bernoulli"
    )
    result = lab.search(
        defined,
        {"control.target": (1, 4), "training.batch": [16, 32]},
        objective=lambda run: abs(run.log[-1]["kl"] - 2),
        better="lower",
        trials=2,
        run=tmp_path / "own",
        **QUIET,
    )
    for trial in result.trials:
        assert trial.value == abs(trial.run.last_record()["kl"] - 2)
    # Both begin from the same weights, whatever was trained before.
    plain = lab.train(defined, overrides=result.trials[1].settings, run=tmp_path / "plain", **QUIET)
    assert plain.log[-1]["kl"] == result.trials[1].run.last_record()["kl"]


def torch_model():
    from custom_models import PlainVAE

    return PlainVAE()


FILE = """
from controlvae import Auto, lab
from custom_models import PlainVAE, groups

experiment = lab.define(PlainVAE, groups(256), law=Auto(2.0), steps=40, likelihood="bernoulli")
"""


def test_a_file_of_the_user_is_searched_by_two_processes(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    helpers = os.path.dirname(groups.__code__.co_filename)
    path = os.pathsep.join([helpers, os.environ.get("PYTHONPATH", "")])
    words = ["search", "mine.py", "--vary", "control.target=1:4", "--vary", "training.batch=16,32"]
    done = subprocess.run(
        command(*words, "--trials", "5", "--workers", "2", "--device", "cpu"),
        cwd=tmp_path,
        env={**ONE_THREAD, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "runs" / "mine-search" / "search.csv").open()))
    assert [row["state"] for row in rows] == ["finished"] * 5
    assert "controlvae train mine.py --set control.target=" in done.stdout
    for folder in lab.find_runs(tmp_path / "runs" / "mine-search"):
        events = [event["event"] for event in folder.events()]
        assert events.count("started") == 1  # by one of the two
        assert events[-1] == "finished"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--objective", "fdi"], "did you mean 'fid'"),
        (["--objective", "kl"], "known: elbo"),
        (["--objective", "perplexity"], "needs sentences or dialogs"),
        (["--objective", "mig", "--set", "model.latents=1"], "single latent"),
        (["--objective", "fid", "--fid", "0"], "--fid 0 skips them"),
        (["--prune", "elob"], "did you mean 'elbo'"),
        (["--vary", "control.tarket=1,2"], "did you mean 'target'"),
        (["--vary", "training.batch=64:16"], "below the upper end"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(tmp_path, words, message):
    options = ["--vary", "control.kp=1e-3:1e-2:log", *words, *SETS, "--device", "cpu"]
    done = within("search", "shapes2d-quick", *options, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_missing_data_is_named_before_anything_is_written(own_folders, tmp_path):
    done = within("search", "ptb-vae", "--vary", "optimiser.rate=1e-4:1e-3", cwd=tmp_path)
    assert done.returncode == 2
    assert "ptb.train.txt" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_factors_are_needed_for_their_scores_and_names_for_workers(tmp_path):
    defined = lab.define(torch_model, groups(256), law=cv.Auto(2.0), steps=40)
    with pytest.raises(UserError, match="it needs ground-truth factors"):
        lab.search(defined, ["control.target=1:4"], objective="mig", run=tmp_path / "s", **QUIET)
    with pytest.raises(UserError, match="several workers need"):
        lab.search(defined, ["control.target=1:4"], workers=2, run=tmp_path / "s", **QUIET)
    with pytest.raises(UserError, match="better='higher'"):
        lab.search(defined, ["control.target=1:4"], objective=len, run=tmp_path / "s", **QUIET)
    assert not list(tmp_path.iterdir())


def test_trials_whose_settings_do_not_fit_are_avoided_and_a_search_of_them_ends(tmp_path):
    # Each value fits alone, and no pair of them does: β starts outside its bounds.
    space = {"control.beta_min": [0.5, 0.6], "control.beta_init": [0.1, 0.2]}
    overrides = {**SMALL, "control": "PI(18, beta_init=1.0)"}
    with pytest.raises(UserError, match="the first 3 trials could not start"):
        lab.search("shapes2d-quick", space, trials=9, overrides=overrides, run=tmp_path, **QUIET)
    assert not list(tmp_path.glob("trial-*"))
