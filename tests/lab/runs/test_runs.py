"""Runs through the command line: kills, Ctrl-C, corrupt files, full disks and wrong input."""

import json
import random
import shutil
import signal
import subprocess
import time

import pytest
from command import ONE_THREAD, command, controlvae, ended_after, within
from tiny import TINY, assert_same_run, newest, sets, stopped_run

from controlvae.lab.reports.metrics_table import print_metrics
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import RunLogger


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run."""
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


def test_run_killed_at_random_moments_ends_the_same(straight, tmp_path):
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
            # After the imports, at some moment of the first half second of work.
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


def test_run_resumed_after_a_time_limit_ends_the_same(straight, tmp_path):
    run = tmp_path / "limited"
    done = controlvae("train", "shapes2d-quick", *TINY, "--run", run, "--time-limit", "0s")
    assert (done.returncode, newest(run).name) == (0, "step-0000000001"), done.stderr
    assert f"stopped at step 1 of 400; resume with: controlvae resume {run}" in done.stdout
    assert controlvae("resume", run, "--device", "cpu").returncode == 0
    assert_same_run(straight, run)


def test_run_resumed_after_ctrl_c_ends_the_same(straight, tmp_path):
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
def test_corrupt_checkpoint_is_skipped(straight, stopped, file):
    path = newest(stopped) / file
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 2] ^= 0xFF
    path.write_bytes(payload)
    done = controlvae("resume", stopped, "--device", "cpu")
    assert done.returncode == 0
    assert "is corrupt" in done.stderr
    assert "using the previous checkpoint" in done.stderr
    assert_same_run(straight, stopped)


def test_full_disk_leaves_earlier_checkpoints_intact(straight, stopped):
    before = newest(stopped)
    # The unit of ulimit is 512 bytes, or 1024 in some shells.
    blocks = before.joinpath("tensors.safetensors").stat().st_size // 2048
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


def test_finished_run_without_checkpoints_keeps_its_log(straight, tmp_path):
    run = shutil.copytree(straight, tmp_path / "run")
    shutil.rmtree(run / "checkpoint")
    done = within("resume", run, cwd=tmp_path)
    assert done.returncode == 2
    assert "its checkpoints are gone" in done.stderr
    assert (run / "log.jsonl").read_bytes() == (straight / "log.jsonl").read_bytes()


def test_torn_event_does_not_corrupt_the_next(tmp_path):
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
def test_checkpoint_of_other_settings_is_refused(stopped, edit):
    before = sorted(path.name for path in (stopped / "checkpoint").iterdir())
    text = (stopped / "experiment.json").read_text()
    assert edit[0] in text
    (stopped / "experiment.json").write_text(text.replace(*edit))
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "does not fit its experiment.json" in done.stderr
    assert sorted(path.name for path in (stopped / "checkpoint").iterdir()) == before


def test_number_of_steps_may_be_increased(stopped):
    text = (stopped / "experiment.json").read_text()
    (stopped / "experiment.json").write_text(text.replace('"steps": 400', '"steps": 410'))
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 0, done.stderr
    assert "finished at step 410" in done.stdout


def test_single_latent_is_evaluated_without_mig(tmp_path):
    run = tmp_path / "run"
    small = [*TINY, *sets("training.steps=3"), *sets("model.latents=1")]
    assert within("train", "shapes2d-quick", *small, "--run", run, cwd=tmp_path).returncode == 0
    done = within("evaluate", run, "--examples", "20", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((run / "metrics.json").read_text())
    assert len(metrics["kl_per_latent"]) == 1
    assert "single latent" in metrics["mig_sampled"]["skipped"]


def test_divergence_names_the_step_and_a_remedy(tmp_path):
    words = ["train", "shapes2d-quick", *TINY, *sets("optimiser.rate=1e18"), "--run"]
    done = controlvae(*words, tmp_path / "run", "--no-repair")
    assert done.returncode == 1
    assert "NaN or infinite at step" in done.stderr
    assert "smaller optimiser.rate" in done.stderr
    assert "Traceback" not in done.stderr
    # Self-repair, the default for presets, gives up after three lower rates.
    done = controlvae(*words, tmp_path / "repaired")
    assert done.returncode == 1
    assert done.stdout.count("the learning rate is") == 3
    assert "repaired 3 times already" in done.stderr
    assert "Traceback" not in done.stderr


def test_target_out_of_reach_is_reported(tmp_path):
    run = tmp_path / "run"
    done = within(
        "train", "shapes2d-quick", *TINY, "--run", run, *sets("control=PI(5000)"), cwd=tmp_path
    )
    assert "out of reach" in done.stderr
    assert any(
        json.loads(line)["event"] == "target out of reach" for line in (run / "events.jsonl").open()
    )
    assert within("report", run, "--examples", "50", cwd=tmp_path).returncode == 0
    assert "target out of reach" in (run / "report.html").read_text()


def test_collapse_is_reported_during_and_after_training(tmp_path):
    run = tmp_path / "run"
    words = [
        "train",
        "shapes2d-quick",
        *TINY,
        *sets("control=Constant(1000)", "training.steps=150"),
    ]
    done = within(*words, "--run", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the code has collapsed: KL 0.0" in done.stderr
    assert "control=Auto(3.0)" in done.stderr
    assert done.stderr.index("has collapsed") < done.stderr.index("step 150/150")
    events = [json.loads(line) for line in (run / "events.jsonl").open()]
    assert [event["event"] for event in events].count("code collapsed") == 1
    assert "the code has collapsed" in run_warnings(RunFolder(run))[-1]


def test_laws_are_simulated_on_a_run(straight, tmp_path):
    image = tmp_path / "simulation.png"
    words = [
        "simulate",
        straight,
        "--law",
        "Auto(5, reach_in=200)",
        "--law",
        "Constant(1)",
        "--out",
        image,
    ]
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Auto(5, reach_in=200)" in done.stdout
    assert image.is_file()
    done = within("simulate", straight, "--law", "Auto(-5)", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_finished_run_is_evaluated_and_reported(straight):
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


def test_stopped_run_applies_a_new_target_when_resumed(straight, stopped):
    shutil.copytree(straight, stopped.parent / "ended")
    done = within("steer", stopped.parent, "11", cwd=stopped)
    assert done.returncode == 0
    assert f"{stopped}: 11 nats" in done.stdout
    assert within("resume", stopped, "--device", "cpu", cwd=stopped).returncode == 0
    assert RunFolder(stopped).last_record()["target"] == 11
    assert "its target was moved by hand to 11 nats" in " ".join(run_warnings(RunFolder(stopped)))
    assert "has ended" in within("steer", stopped, "12", cwd=stopped).stderr


def test_target_moved_after_the_last_checkpoint_is_moved_again(stopped):
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


def test_killed_run_without_checkpoints_keeps_its_log(stopped):
    events = stopped / "events.jsonl"
    kept = [
        line for line in events.read_text().splitlines() if json.loads(line)["event"] != "stopped"
    ]
    events.write_text("\n".join(kept) + "\n")  # as after a kill
    log = (stopped / "log.jsonl").read_bytes()
    shutil.rmtree(stopped / "checkpoint")
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "its checkpoints are gone" in done.stderr
    assert (stopped / "log.jsonl").read_bytes() == log


def test_seeds_have_folders_and_differ(tmp_path):
    words = [
        "train",
        "shapes2d-quick",
        *TINY,
        *sets("training.steps=20"),
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
        (["train", "shapes2d-quick", *sets("control.kii=1")], "did you mean 'ki'"),
        (
            ["train", "shapes2d-quick", *sets("control.ki=fast")],
            "control.ki must be a number, got 'fast'",
        ),
        (
            ["train", "shapes2d-quick", *sets("control.target=-3")],
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
def test_wrong_input_is_one_line_and_status_2(tmp_path, words, message):
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert message in lines[0]
    assert lines[0].startswith("controlvae: ")


def test_run_with_a_critic_resumes_exactly(tmp_path):
    words = [
        "train",
        "shapes2d-control-factor",
        *TINY,
        *sets("objective.critic=(40,24)", "data.size=32"),
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


def test_validation_keeps_the_best_model_after_a_stop(tmp_path):
    words = [
        "train",
        "shapes2d-quick",
        *TINY,
        *sets("training.validation=64", "training.validate_every=35"),
    ]
    one, other = tmp_path / "straight", tmp_path / "stopped"
    assert within(*words, "--run", one, cwd=tmp_path).returncode == 0
    with ended_after(100):
        within(*words, "--run", other, cwd=tmp_path)
    assert within("resume", other, "--device", "cpu", cwd=tmp_path).returncode == 0
    assert_same_run(one, other)
    assert (one / "validation.jsonl").read_bytes() == (other / "validation.jsonl").read_bytes()
    validations = [json.loads(line) for line in (one / "validation.jsonl").read_text().splitlines()]
    assert [record["step"] for record in validations] == [*range(35, 400, 35), 400]
    best = max(validations, key=lambda record: record["elbo"])
    assert max(path.name for path in (one / "best").glob("step-*")) == f"step-{best['step']:010d}"
    few = ["--examples", "50", "--iwae", "0", "--device", "cpu"]
    assert within("evaluate", one, *few, cwd=tmp_path).returncode == 0
    assert json.loads((one / "metrics.json").read_text())["best"]["step"] == best["step"]
    for damaged in (one / "best").rglob("*.safetensors"):
        damaged.write_bytes(damaged.read_bytes()[:1000])
    assert within("evaluate", one, *few, cwd=tmp_path).returncode == 0
    assert "corrupt" in json.loads((one / "metrics.json").read_text())["best"]["skipped"]
    refused = within(
        *words, *sets("training.validation=256"), "--run", tmp_path / "no", cwd=tmp_path
    )
    assert refused.returncode == 2
    assert "got 256 of 256" in refused.stderr


def test_lost_best_weights_are_replaced_by_later_ones(tmp_path):
    run, words = (
        tmp_path / "run",
        [
            "train",
            "shapes2d-quick",
            *TINY,
            *sets("training.validation=64", "training.validate_every=35"),
        ],
    )
    with ended_after(100):
        within(*words, "--run", run, cwd=tmp_path)
    shutil.rmtree(run / "best")
    # A record that is better than any later one, but without its weights.
    record = {"step": 1, "elbo": 0.0, "reconstruction": 0.0, "kl": 0.0}
    (run / "validation.jsonl").write_text(json.dumps(record) + "\n")
    assert within("resume", run, "--device", "cpu", cwd=tmp_path).returncode == 0
    assert list((run / "best").glob("step-*"))


def test_evaluation_refuses_wrong_and_skips_corrupt_checkpoints(straight, tmp_path):
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
    assert "does not match its digest" in done.stderr
    assert f"using that of step {int(older.name[5:])}" in done.stderr


def test_text_run_resumes_exactly_and_is_evaluated(tmp_path, capsys):
    settings = sets(
        "data.sentences=300",
        "training.steps=60",
        "training.log_every=7",
        "model.width=16",
        "training.validation=40",
        "training.validate_every=14",
    )
    words = ["train", "text-quick", *settings]
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
    validations = [json.loads(line) for line in (one / "validation.jsonl").read_text().splitlines()]
    assert [record["step"] for record in validations] == [14, 28, 42, 56, 60]
    assert metrics["best"]["step"] == max(validations, key=lambda record: record["elbo"])["step"]
    assert metrics["best"]["text"]["perplexity"] > 1
    assert metrics["text"]["perplexity"] > metrics["text"]["reconstruction_perplexity"] > 1
    beta = json.loads((one / "log.jsonl").read_text().splitlines()[-1])["beta"]
    assert metrics["text"]["paper_elbo"] == pytest.approx(
        -(metrics["reconstruction"] + beta * metrics["kl"])
    )
    assert metrics["text"]["paper_elbo"] > metrics["elbo"]  # a weight below one makes it larger
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
    for words in ("Sentences from the prior", "Reconstructed sentences", "The paper&#39;s curve"):
        assert words in page


def test_changed_text_is_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(f"the {animal} sat on the mat" for animal in ("cat", "dog", "bird") * 40)
    )
    settings = sets(
        f'data=TextFile("{text}")', "training.steps=4", "training.log_every=2", "model.width=16"
    )
    words = ["train", "text-quick", *settings]
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
def test_text_model_works_without_its_text(tmp_path, more):
    if more:
        pytest.importorskip("tokenizers")
    text = tmp_path / "my.txt"
    text.write_text(
        "\n".join(
            f"The {'tall ' * (number % 3)}house number {number % 7} ." for number in range(80)
        )
    )
    settings = sets(
        f"data=TextFile('my.txt', lower=true{more})",
        "training.steps=20",
        "training.batch=8",
        "model.width=16",
    )
    assert (
        within(
            "train", "text-quick", *settings, "--device", "cpu", "--run", "run", cwd=tmp_path
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
