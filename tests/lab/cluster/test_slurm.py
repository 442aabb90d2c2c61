"""A real Slurm of one node: requeue, scancel, and nodes that lack the folder or the packages.

`tests/cluster/slurm_campaign.py` adds time limits and a drained node, which take minutes.
"""

import sys
from importlib.metadata import distribution

import pytest
from command import within
from slurm_node import TINY, MissingSlurmError, slurm_node, wait_until

SWEEP = ["sweep", "shapes2d-quick", "--vary", "control.target=14,18", *TINY]
SWEEP += ["--set", "training.steps=700", "--checkpoint-every", "0.5s"]
JOBS = ["--cluster", "slurm", "--time", "10m"]

pytest.importorskip("submitit", reason="submitit is not installed")


def started(work, **settings):
    """Return a running cluster, or skip the test."""
    context = slurm_node(work, **settings)
    try:
        return context, context.__enter__()
    except MissingSlurmError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    context, made = started(tmp_path_factory.mktemp("node"))
    yield made
    context.__exit__(None, None, None)


def lines_of(run):
    log = run / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.is_file() else 0


def test_jobs_that_slurm_requeues_and_cancels_end_like_an_unbroken_run(node):
    runs = node.work / "runs"
    submit = [*SWEEP, "--run", runs, *JOBS]
    assert "2 jobs submitted" in node.controlvae(*submit).stdout
    one, two = (runs / f"target={target}" / "seed-1" for target in (14, 18))
    wait_until(lambda: lines_of(one) > 5 and lines_of(two) > 5)
    first, second = sorted(node.jobs())
    node.run("scontrol", "requeue", first)
    node.run("scancel", second)
    assert "14/seed-1" in node.controlvae("status", runs).stdout
    wait_until(lambda: second not in node.jobs())
    assert 0 < lines_of(two) < 100
    again = node.controlvae(*submit).stdout  # what was cancelled is submitted again
    assert "plan: 1 run in 1 job" in again
    wait_until(lambda: not node.jobs())
    assert "2 finished" in node.controlvae("status", runs).stdout
    node.controlvae(*SWEEP, "--run", node.work / "plain")
    for run in (one, two):
        plain = node.work / "plain" / run.relative_to(runs)
        assert (run / "log.jsonl").read_bytes() == (plain / "log.jsonl").read_bytes()
    events = (runs / "jobs" / "job-001.jsonl").read_text()
    assert events.count('"started"') >= 2


def test_cancel_empties_the_queue_and_saves_the_runs(node):
    runs = node.work / "cancelled"
    steps = ["--set", "training.steps=100000", "--seeds", "2"]
    node.controlvae("train", "shapes2d-quick", *TINY, *steps, "--run", runs, *JOBS)
    wait_until(lambda: lines_of(runs / "seed-1") > 5)
    assert "cancelled job-001" in node.controlvae("cancel", runs).stdout
    wait_until(lambda: not node.jobs())
    assert "2 cancelled" in node.controlvae("status", runs).stdout
    assert node.controlvae("cancel", runs, check=False).returncode == 2
    assert (runs / "seed-1" / "checkpoint").is_dir()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--partition", "none"], "no partition 'none' on this cluster; it has main, other"),
        (["--partition", "other", "--time", "3h"], "use --time 5m or less"),
        (["--time", "0-01:00:01"], "use --time 60m or less"),
        (["--cpus", "64", "--time", "5m"], "no node of partition main has 64 cores"),
        (
            ["--gpus", "2", "--time", "5m", "--device", "cuda"],
            "no node of partition main has 2 GPUs",
        ),
    ],
)
def test_what_slurm_refuses_is_one_line_and_leaves_nothing_behind(node, words, said, monkeypatch):
    for name in ("SLURM_CONF", "CONTROLVAE_CACHE", "PYTHONPATH"):
        monkeypatch.setenv(name, node.environment[name])
    done = within(*SWEEP, "--run", node.work / "refused", *JOBS[:2], *words, cwd=node.work)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert not (node.work / "refused").exists()
    assert not node.jobs()


def test_what_sbatch_refuses_is_one_line_and_leaves_nothing_behind(node):
    program = (
        "from controlvae import lab\n"
        "cluster = lab.Slurm(time='5m', wait=False, sbatch={'constraint': 'none'})\n"
        "lab.train('shapes2d-quick', run='refused', overrides={'data.images': 256}, "
        "device='cpu', cluster=cluster)"
    )
    done = node.run(sys.executable, "-c", program, check=False)
    assert "UserError: Slurm refused the jobs" in done.stderr.splitlines()[-1]
    assert not (node.work / "refused").exists()
    assert not node.jobs()


def test_a_node_without_the_folder_or_with_other_packages_is_refused_at_once(tmp_path):
    hidden, fake = tmp_path / "hidden", tmp_path / "METADATA"
    hidden.mkdir()
    fake.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    real = (
        distribution("numpy").locate_file("") / f"numpy-{distribution('numpy').version}.dist-info"
    )
    script = tmp_path / "other_files.sh"
    script.write_text(
        f"#!/bin/sh\nset -e\nmount -t tmpfs none {hidden}\n"
        f'mount --bind {fake} {real}/METADATA\nexec "$@"\n'
    )
    script.chmod(0o755)
    context, node = started(tmp_path, prefix=("unshare", "--mount", str(script)))
    try:
        for folder, said in ((hidden, "is not shared"), (tmp_path, "numpy 1.0 on")):
            done = node.controlvae(*SWEEP, "--run", folder / "runs", *JOBS, check=False)
            assert done.returncode == 2
            assert said in done.stderr
            assert done.stderr.count("\n") == 1
            assert not (folder / "runs").exists()
            assert not node.jobs()
        assert not list(hidden.iterdir())
    finally:
        context.__exit__(None, None, None)
