"""A run through the command line: nothing lost on a kill, Ctrl-C, damage or a full disk; bad input in one line."""

import json
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from command import ONE_THREAD, command, controlvae, ended_after, within
from tiny import TINY, assert_same_run, newest, stopped_run

from controlvae.errors import UserError
from controlvae.lab.config import preset
from controlvae.lab.reports.metrics_table import print_metrics
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import RunLogger
from controlvae.lab.runs.replay import recorded_weight, replay_weight


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing happened to."""
    run = tmp_path_factory.mktemp("runs") / "straight"
    done = controlvae("train", "shapes2d-quick", *TINY, "--run", run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def on_the_way(tmp_path_factory):
    return stopped_run(tmp_path_factory.mktemp("runs") / "stopped")


@pytest.fixture
def stopped(on_the_way, tmp_path):
    return shutil.copytree(on_the_way, tmp_path / "stopped")


def test_killed_at_random_moments_a_run_ends_the_same(straight, tmp_path):
    run, dice, kills = tmp_path / "killed", random.Random(1), 0
    words = ["train", "shapes2d-quick", *TINY, "--run", run]
    for _ in range(40):
        process = subprocess.Popen(
            command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ONE_THREAD,
        )
        words = ["resume", run, "--checkpoint-every", "0.02s", "--device", "cpu"]
        if kills < 4:
            # Past the imports, then somewhere within the first half second of work.
            before = (run / "log.jsonl").stat().st_size if (run / "log.jsonl").exists() else 0
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                if (run / "log.jsonl").exists() and (run / "log.jsonl").stat().st_size != before:
                    break
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.5))
            process.kill()
            kills += 1
        process.communicate()
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert_same_run(straight, run)


def test_a_time_limit_leaves_a_run_that_ends_the_same(straight, tmp_path):
    run = tmp_path / "limited"
    done = controlvae("train", "shapes2d-quick", *TINY, "--run", run, "--time-limit", "0s")
    assert (done.returncode, newest(run).name) == (0, "step-0000000001"), done.stderr
    assert f"stopped at step 1 of 400; resume with: controlvae resume {run}" in done.stdout
    assert controlvae("resume", run, "--device", "cpu").returncode == 0
    assert_same_run(straight, run)


def test_ctrl_c_leaves_a_run_that_ends_the_same(straight, tmp_path):
    run = tmp_path / "interrupted"
    process = subprocess.Popen(
        command("train", "shapes2d-quick", *TINY, "--run", run),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ONE_THREAD,
    )
    while process.poll() is None and not (
        (run / "log.jsonl").exists() and (run / "log.jsonl").stat().st_size
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"controlvae resume {run}" in out
    assert "Traceback" not in err
    assert controlvae("resume", run, "--device", "cpu").returncode == 0
    assert_same_run(straight, run)


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over(straight, stopped, file):
    path = newest(stopped) / file
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 2] ^= 0xFF
    path.write_bytes(payload)
    done = controlvae("resume", stopped, "--device", "cpu")
    assert done.returncode == 0
    assert "is corrupt" in done.stderr
    assert "using the previous checkpoint" in done.stderr
    assert_same_run(straight, stopped)


def test_a_full_disk_leaves_earlier_checkpoints_intact(straight, stopped):
    before = newest(stopped)
    blocks = (
        before.joinpath("tensors.safetensors").stat().st_size // 2048
    )  # of 512 bytes or, in some shells, 1024
    line = [
        "sh",
        "-c",
        f'ulimit -f {blocks} && exec "$@"',
        "sh",
        *command("resume", stopped, "--device", "cpu"),
    ]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=300, env=ONE_THREAD, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("controlvae: cannot write")
    assert before.exists()
    assert controlvae("resume", stopped, "--device", "cpu").returncode == 0
    assert_same_run(straight, stopped)


def test_a_run_without_its_checkpoints_keeps_its_log(straight, tmp_path):
    run = shutil.copytree(straight, tmp_path / "run")
    shutil.rmtree(run / "checkpoint")
    done = within("resume", run, cwd=tmp_path)
    assert done.returncode == 2
    assert "its checkpoints are gone" in done.stderr
    assert (run / "log.jsonl").read_bytes() == (straight / "log.jsonl").read_bytes()


def test_a_torn_event_does_not_spoil_the_next(tmp_path):
    folder = RunFolder(tmp_path)
    folder.events_file.write_text('{"event": "started"}\n{"event": "stop')
    logger = RunLogger(folder)
    logger.event("resumed")
    logger.close()
    assert [entry["event"] for entry in folder.events()] == ["started", "resumed"]


@pytest.mark.parametrize(
    "edit",
    [
        ('"latents": 10', '"latents": 9'),
        ('"hidden": 16', '"hidden": 17'),
        ('"target": 18.0', '"target": 5.0'),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(stopped, edit):
    before = sorted(path.name for path in (stopped / "checkpoint").iterdir())
    text = (stopped / "experiment.json").read_text()
    assert edit[0] in text
    (stopped / "experiment.json").write_text(text.replace(*edit))
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "does not fit its experiment.json" in done.stderr
    assert sorted(path.name for path in (stopped / "checkpoint").iterdir()) == before


def test_a_longer_run_may_be_asked_for(stopped):
    text = (stopped / "experiment.json").read_text()
    (stopped / "experiment.json").write_text(text.replace('"steps": 400', '"steps": 410'))
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 0, done.stderr
    assert "finished at step 410" in done.stdout


def test_a_single_latent_evaluates_without_a_gap(tmp_path):
    run = tmp_path / "run"
    small = [*TINY, "--set", "training.steps=3", "--set", "model.latents=1"]
    assert within("train", "shapes2d-quick", *small, "--run", run, cwd=tmp_path).returncode == 0
    done = within("evaluate", run, "--examples", "20", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((run / "metrics.json").read_text())
    assert len(metrics["kl_per_latent"]) == 1
    assert "single latent" in metrics["mig_sampled"]["skipped"]


def test_divergence_stops_with_step_and_advice(tmp_path):
    done = controlvae(
        "train", "shapes2d-quick", *TINY, "--run", tmp_path / "run", "--set", "optimiser.rate=1e18"
    )
    assert done.returncode == 1
    assert "NaN or infinite at step" in done.stderr
    assert "smaller optimiser.rate" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_target_out_of_reach_is_reported(tmp_path):
    run = tmp_path / "run"
    done = within(
        "train", "shapes2d-quick", *TINY, "--run", run, "--set", "control=PI(5000)", cwd=tmp_path
    )
    assert "out of reach" in done.stderr
    assert any(
        json.loads(line)["event"] == "target out of reach" for line in (run / "events.jsonl").open()
    )
    assert within("report", run, "--examples", "50", cwd=tmp_path).returncode == 0
    assert "target out of reach" in (run / "report.html").read_text()


def test_a_collapsed_code_is_called_out_while_it_trains_and_afterwards(tmp_path):
    run = tmp_path / "run"
    words = [
        "train",
        "shapes2d-quick",
        *TINY,
        "--set",
        "control=Constant(1000)",
        "--set",
        "training.steps=150",
    ]
    done = within(*words, "--run", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the code has collapsed: KL 0.0" in done.stderr
    assert "hold the KL at a target" in done.stderr
    assert done.stderr.index("has collapsed") < done.stderr.index("step 150/150")
    events = [json.loads(line) for line in (run / "events.jsonl").open()]
    assert [event["event"] for event in events].count("code collapsed") == 1
    assert "the code has collapsed" in run_warnings(RunFolder(run))[-1]


def test_laws_are_tried_on_a_run_without_training(straight, tmp_path):
    picture = tmp_path / "simulation.png"
    words = [
        "simulate",
        straight,
        "--law",
        "Auto(5, reach_in=200)",
        "--law",
        "Constant(1)",
        "--out",
        picture,
    ]
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Auto(5, reach_in=200)" in done.stdout
    assert picture.is_file()
    done = within("simulate", straight, "--law", "Auto(-5)", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_finished_run_evaluates_and_reports(straight):
    done = controlvae("report", straight, "--examples", "100", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    page = (straight / "report.html").read_text()
    assert page.count("<svg") == 5
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")
    metrics = json.loads((straight / "metrics.json").read_text())
    assert metrics["elbo"] == pytest.approx(-(metrics["reconstruction"] + metrics["kl"]))
    assert sum(metrics["kl_per_latent"]) == pytest.approx(metrics["kl"])
    assert "finished" in within("resume", straight, cwd=straight).stdout


def test_a_stopped_run_is_steered_when_it_goes_on_and_so_beside_one_that_has_ended(
    straight, stopped
):
    shutil.copytree(straight, stopped.parent / "ended")
    asked = within("steer", stopped.parent, "11", cwd=stopped)
    assert (asked.returncode, asked.stdout) == (
        0,
        f"requested for {stopped}: 11 nats, applied when it is resumed\n",
    )
    assert within("resume", stopped, "--device", "cpu", cwd=stopped).returncode == 0
    assert RunFolder(stopped).last_record()["target"] == 11
    assert "its target was moved by hand to 11 nats" in " ".join(run_warnings(RunFolder(stopped)))
    assert "has ended" in within("steer", stopped, "12", cwd=stopped).stderr


def test_a_set_point_moved_after_the_checkpoint_that_is_left_is_moved_again(stopped):
    before = newest(stopped)
    shutil.copytree(before, stopped.parent / before.name)
    within("steer", stopped, "11", cwd=stopped)
    with ended_after(200):
        assert within("resume", stopped, "--device", "cpu", cwd=stopped).returncode == 0
    for damaged in (stopped / "checkpoint").iterdir():
        (damaged / "state.json").write_text("")
    shutil.copytree(stopped.parent / before.name, before, dirs_exist_ok=True)
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 0, done.stderr
    assert "its target was moved to 11 nats" in done.stderr
    moves = [event for event in RunFolder(stopped).events() if event["event"] == "target moved"]
    assert (len(moves), RunFolder(stopped).last_record()["target"]) == (1, 11)
    assert not list((stopped / "checkpoint").glob("passed-over-*"))


def test_a_run_whose_checkpoints_were_deleted_keeps_its_log(stopped):
    events = stopped / "events.jsonl"
    kept = [
        line for line in events.read_text().splitlines() if json.loads(line)["event"] != "stopped"
    ]
    events.write_text("\n".join(kept) + "\n")  # as a kill leaves it
    log = (stopped / "log.jsonl").read_bytes()
    shutil.rmtree(stopped / "checkpoint")
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "its checkpoints are gone" in done.stderr
    assert (stopped / "log.jsonl").read_bytes() == log


def test_seeds_get_a_folder_each_and_differ(tmp_path):
    words = [
        "train",
        "shapes2d-quick",
        *TINY,
        "--set",
        "training.steps=20",
        "--seeds",
        2,
        "--run",
        tmp_path / "s",
    ]
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logs = [(tmp_path / "s" / f"seed-{seed}" / "log.jsonl").read_text() for seed in (1, 2)]
    assert logs[0] != logs[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "shapes2d-quik"], "did you mean 'shapes2d-quick'"),
        (["train", "shapes2d-quick", "--set", "control.kii=1"], "did you mean 'ki'"),
        (
            ["train", "shapes2d-quick", "--set", "control.ki=fast"],
            "control.ki must be a number, got 'fast'",
        ),
        (
            ["train", "shapes2d-quick", "--set", "control.target=-3"],
            "target must be positive, got -3",
        ),
        (["train", "shapes2d-quick", "--device", "cuda:97"], "try --device auto"),
        (["train", "shapes2d-quick", "--time-limit", "soon"], "got 'soon'"),
        (["train", "shapes2d-quick", "--data-root", "/no/such/folder"], "/no/such/folder"),
        (["train"], "preset"),
        (["resume", "/no/such/run"], "no run folder at /no/such/run"),
        (["evaluate", "."], "not a run folder"),
        (["report", "/no/such/run"], "no run folder"),
        (["steer", "/no/such/run", "-20"], "no run folder"),
        (["data", "shapes"], "shapes2d"),
        (["wash"], "wash"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, words, message):
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert message in lines[0]
    assert lines[0].startswith("controlvae: ")


def test_a_run_with_a_critic_resumes_as_if_never_stopped(tmp_path):
    words = [
        "train",
        "shapes2d-control-factor",
        *TINY,
        "--set",
        "objective.critic=(40,24)",
        "--set",
        "data.size=32",
    ]
    one, other = tmp_path / "straight", tmp_path / "stopped"
    assert (
        "(target 0.30), the critic right in " in within(*words, "--run", one, cwd=tmp_path).stdout
    )
    with ended_after(100):
        within(*words, "--run", other, cwd=tmp_path)
    done = within("resume", other, "--device", "cpu", cwd=tmp_path)
    assert "finished at step 400" in done.stdout, done.stderr
    assert_same_run(one, other)
    record = json.loads((one / "log.jsonl").read_text().splitlines()[-1])
    assert record["target"] == pytest.approx(0.3)
    assert {"tc", "tc_sd", "critic_accuracy"} <= record.keys()


def test_a_recorded_weight_is_played_back(straight, tmp_path):
    words = ["train", "shapes2d-quick", *TINY]
    done = within(*words, "--replay", straight, "--run", tmp_path / "replay", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recorded, played = (
        {
            r["step"]: r["beta"]
            for r in map(json.loads, (run / "log.jsonl").read_text().splitlines())
        }
        for run in (straight, tmp_path / "replay")
    )
    # A log line averages seven steps and the playing is a line between such averages.
    assert played[399] == pytest.approx(recorded[399], rel=0.05)
    missing = within(
        *words, "--replay", tmp_path / "nothing", "--run", tmp_path / "no", cwd=tmp_path
    )
    assert missing.returncode == 2


def recording(path, experiment, weights):
    """A run folder with nothing in it but a log, a line for every 500 steps."""
    folder = RunFolder(path)
    folder.create(experiment, "train")
    lines = [
        {"step": 500 * n, "kl": 1, "reconstruction": 1, "beta": b}
        for n, b in enumerate(weights, start=1)
    ]
    folder.log_file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_what_is_played_is_the_mean_of_the_seeds_to_a_per_cent(tmp_path):
    # Falls fast, with a wave on it, as a controller's weight does that begins large.
    lines = np.arange(600)
    seeds = [2 + 85 * np.exp(-lines / tau) + 0.3 * np.sin(lines / 9) for tau in (40, 55)]
    folders = [
        recording(tmp_path / str(tau), preset("shapes2d-quick"), b) for tau, b in enumerate(seeds)
    ]
    weight, mean = recorded_weight(folders), np.mean(seeds, axis=0)
    played = np.interp(500 * lines + 250, weight.steps, weight.values)
    assert np.abs(played / mean - 1).max() < 0.01
    assert len(weight.steps) <= 120
    for value in (4.0, 0.0):
        constant = recorded_weight(
            [recording(tmp_path / f"at {value}", preset("shapes2d-quick"), [value] * 300)]
        )
        assert set(constant.values) == {value}


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_of_a_noisy_recording_the_weight_is_played_and_not_the_noise(tmp_path, noise):
    lines = np.arange(3_000)
    smooth = 2 + 85 * np.exp(-lines / 200)
    noisy = smooth * (1 + noise * np.random.default_rng(0).normal(size=len(lines)))
    weight = recorded_weight([recording(tmp_path, preset("shapes2d-quick"), noisy)])
    played = np.interp(500 * lines + 250, weight.steps, weight.values)
    assert np.sqrt(np.mean((played / smooth - 1) ** 2)) < noise / 3
    assert np.mean(played / smooth) == pytest.approx(1, abs=noise / 10)


def test_a_recording_of_corners_is_played_to_the_last_one(tmp_path):
    weights = np.interp(np.arange(3_000), np.arange(0, 3_001, 75), np.arange(41) % 2 * 3.0 + 1)
    weight = recorded_weight([recording(tmp_path, preset("shapes2d-quick"), weights)])
    played = np.interp(500 * np.arange(3_000) + 250, weight.steps, weight.values)
    np.testing.assert_allclose(played, weights, rtol=0.02)


def test_a_recording_that_ends_early_is_noted_and_one_of_something_else_refused(tmp_path):
    kl, tc = preset("shapes2d-quick"), preset("shapes2d-control-factor")
    short = recording(tmp_path / "short", kl, [3.0, 2.0])
    with pytest.warns(UserWarning, match=r"ends at step 1,000; .* 2, .* to step 3,000"):
        assert replay_weight(kl, [short]).control.values == (3.0, 2.0)
    with pytest.raises(
        UserError,
        match="total correlation",
    ):
        replay_weight(kl, [recording(tmp_path / "tc", tc, [3.0, 2.0])])


def test_validation_keeps_the_best_model_and_survives_a_stop(tmp_path):
    words = [
        "train",
        "shapes2d-quick",
        *TINY,
        "--set",
        "training.validation=64",
        "--set",
        "training.validate_every=35",
    ]
    one, other = tmp_path / "straight", tmp_path / "stopped"
    assert within(*words, "--run", one, cwd=tmp_path).returncode == 0
    with ended_after(100):
        within(*words, "--run", other, cwd=tmp_path)
    assert within("resume", other, "--device", "cpu", cwd=tmp_path).returncode == 0
    assert_same_run(one, other)
    assert (one / "validation.jsonl").read_bytes() == (other / "validation.jsonl").read_bytes()
    looks = [json.loads(line) for line in (one / "validation.jsonl").read_text().splitlines()]
    assert [look["step"] for look in looks] == [*range(35, 400, 35), 400]
    best = max(looks, key=lambda look: look["elbo"])
    assert max(path.name for path in (one / "best").glob("step-*")) == f"step-{best['step']:010d}"
    few = ["--examples", "50", "--iwae", "0", "--device", "cpu"]
    assert within("evaluate", one, *few, cwd=tmp_path).returncode == 0
    assert json.loads((one / "metrics.json").read_text())["best"]["step"] == best["step"]
    for damaged in (one / "best").rglob("*.safetensors"):
        damaged.write_bytes(damaged.read_bytes()[:1000])
    assert within("evaluate", one, *few, cwd=tmp_path).returncode == 0
    assert "corrupt" in json.loads((one / "metrics.json").read_text())["best"]["skipped"]
    refused = within(
        *words, "--set", "training.validation=256", "--run", tmp_path / "no", cwd=tmp_path
    )
    assert refused.returncode == 2
    assert "leaves nothing of 256 examples" in refused.stderr


def test_where_the_best_weights_are_gone_the_best_from_then_on_are_kept(tmp_path):
    run, words = (
        tmp_path / "run",
        [
            "train",
            "shapes2d-quick",
            *TINY,
            "--set",
            "training.validation=64",
            "--set",
            "training.validate_every=35",
        ],
    )
    with ended_after(100):
        within(*words, "--run", run, cwd=tmp_path)
    shutil.rmtree(run / "best")
    lines = [
        json.dumps({"step": 1, "elbo": 0.0, "reconstruction": 0.0, "kl": 0.0})
    ]  # better than any to come
    (run / "validation.jsonl").write_text("\n".join(lines) + "\n")
    assert within("resume", run, "--device", "cpu", cwd=tmp_path).returncode == 0
    assert list((run / "best").glob("step-*"))


def test_weights_of_other_settings_are_not_measured_and_damaged_ones_are_named(straight, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(straight, run)
    settings = run / "experiment.json"
    settings.write_text(settings.read_text().replace('"bernoulli"', '"squared-error"'))
    refused = within("evaluate", run, "--device", "cpu", cwd=tmp_path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "written with other settings" in refused.stderr
    shutil.copy(straight / "experiment.json", settings)
    newest = max((run / "checkpoint").glob("step-*")) / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    done = within("evaluate", run, "--examples", "20", "--device", "cpu", cwd=tmp_path)
    older = max(path for path in (run / "checkpoint").glob("step-*") if path != newest.parent)
    assert done.returncode == 0, done.stderr
    assert (
        f"is corrupt (tensors.safetensors does not match its digest); using that of step {int(older.name[5:])}"
        in done.stderr
    )


def test_a_run_over_sentences_resumes_as_if_never_stopped_and_is_evaluated(tmp_path, capsys):
    sets = [
        "data.sentences=300",
        "training.steps=60",
        "training.log_every=7",
        "model.width=16",
        "training.validation=40",
        "training.validate_every=14",
    ]
    words = ["train", "text-quick", *(word for pair in sets for word in ("--set", pair))]
    words += ["--device", "cpu", "--checkpoint-every", "0.02s"]
    one, other = tmp_path / "straight", tmp_path / "stopped"
    assert within(*words, "--run", one, cwd=tmp_path).returncode == 0
    with ended_after(30):
        within(*words, "--run", other, cwd=tmp_path)
    assert "finished at step 60" in within("resume", other, "--device", "cpu", cwd=tmp_path).stdout
    assert_same_run(one, other)
    assert within("report", one, "--examples", 50, cwd=tmp_path).returncode == 0
    metrics = json.loads((one / "metrics.json").read_text())
    assert metrics["split"] == "test: 300 sentences"
    looks = [json.loads(line) for line in (one / "validation.jsonl").read_text().splitlines()]
    assert [look["step"] for look in looks] == [14, 28, 42, 56, 60]
    assert metrics["best"]["step"] == max(looks, key=lambda look: look["elbo"])["step"]
    assert metrics["best"]["text"]["perplexity"] > 1
    assert metrics["text"]["perplexity"] > metrics["text"]["reconstruction_perplexity"] > 1
    beta = json.loads((one / "log.jsonl").read_text().splitlines()[-1])["beta"]
    assert metrics["text"]["paper_elbo"] == pytest.approx(
        -(metrics["reconstruction"] + beta * metrics["kl"])
    )
    assert metrics["text"]["paper_elbo"] > metrics["elbo"]  # flattered by a weight below one
    print_metrics("run", metrics)
    shown = capsys.readouterr().out
    for words in (
        "paper elbo of",
        "iwae perplexity of",
        "decoded from its code",
        metrics["text"]["samples"][0],
    ):
        assert words in shown
    three, sixty = (
        within("sample", one, "--count", count, cwd=tmp_path).stdout.splitlines()
        for count in (3, 60)
    )
    assert (len(three), len(sixty), len(set(sixty[:50]) & set(sixty[50:]))) == (3, 60, 0)
    assert sixty[:3] == three
    refused = {
        ("sample", "--columns", 3): "--columns is for images",
        ("traverse",): "not of images",
    }
    for (verb, *words), reason in refused.items():
        assert reason in within(verb, one, *words, cwd=tmp_path).stderr
    ends = ["the cat sees the xyzzy .", metrics["text"]["read_back"][0]["sentence"]]
    way = within(
        "interpolate", one, "--from", ends[0], "--to", ends[1], "--columns", 3, cwd=tmp_path
    ).stdout
    lines = way.splitlines()
    assert (len(lines), lines[-1]) == (5, f"to    {ends[1]}")
    assert lines[0].endswith("the <UNK> .")
    assert within("reconstruct", one, "--columns", 2, cwd=tmp_path).stdout.count("code  ") == 2
    page = (one / "report.html").read_text()
    assert "The preset text-quick with other settings" in page
    for words in ("Sentences from the prior", "What a code keeps", "The paper&#x27;s curve"):
        assert words in page


def test_text_that_changed_under_a_run_is_noticed(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(f"the {animal} sat on the mat" for animal in ("cat", "dog", "bird") * 40)
    )
    sets = [
        f'data=TextFile("{text}")',
        "training.steps=4",
        "training.log_every=2",
        "model.width=16",
    ]
    words = ["train", "text-quick", *(word for pair in sets for word in ("--set", pair))]
    words += ["--run", tmp_path / "run", "--device", "cpu"]
    assert within(*words, cwd=tmp_path).returncode == 0
    assert (
        within(
            "sample", tmp_path / "run", "--count", "2", "--device", "cpu", cwd=tmp_path
        ).returncode
        == 0
    )
    text.write_text(text.read_text().replace("mat", "another mat"))
    for verb in ("reconstruct", "evaluate"):
        refused = within(verb, tmp_path / "run", "--device", "cpu", cwd=tmp_path)
        assert refused.returncode == 2
        assert "has changed since training started" in refused.stderr


@pytest.mark.parametrize("more", ["", ", pieces=40"])
def test_a_model_of_text_writes_without_its_text_and_says_what_it_cannot_do(tmp_path, more):
    if more:
        pytest.importorskip("tokenizers")
    text = tmp_path / "my.txt"
    text.write_text(
        "\n".join(
            f"The {'tall ' * (number % 3)}house number {number % 7} ." for number in range(80)
        )
    )
    sets = [
        f"data=TextFile('my.txt', lower=true{more})",
        "training.steps=20",
        "training.batch=8",
        "model.width=16",
    ]
    words = [word for one in sets for word in ("--set", one)]
    assert (
        within(
            "train", "text-quick", *words, "--device", "cpu", "--run", "run", cwd=tmp_path
        ).returncode
        == 0
    )
    looks = [
        ["sample", "run"],
        ["interpolate", "run", "--from", "The tall house", "--to", "number 3 ."],
    ]
    before = [within(*look, cwd=tmp_path).stdout for look in looks]
    RunFolder(tmp_path / "unbegun").create(RunFolder(tmp_path / "run").experiment(), "")
    measured = within("evaluate", ".", "--iwae", 0, cwd=tmp_path)
    assert measured.returncode == 0
    assert measured.stderr.endswith("no checkpoint yet: unbegun\n")
    for other in ("\n".join(20 * ["another text altogether ."]), None):
        text.unlink() if other is None else text.write_text(other)
        assert [within(*look, cwd=tmp_path).stdout for look in looks] == before
        reason = (
            "no file or folder 'my.txt'" if other is None else "has changed since training started"
        )
        for look in (["evaluate", "run"], ["reconstruct", "run"], ["interpolate", "run"]):
            refused = within(*look, cwd=tmp_path)
            *earlier, last = refused.stderr.splitlines()
            assert (refused.returncode, reason in last) == (2, True)
            assert earlier in ([], ["controlvae: evaluating run, step 20"])
