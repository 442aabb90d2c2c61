"""Run folders with made-up metrics, and scored codes of an external model."""

import json

import numpy as np
from command import within

from controlvae.lab.config import override, preset
from controlvae.lab.runs.folder import RunFolder


def evaluated_run(path, metrics, name="shapes2d-control-16", changes=()):
    """Create the folder of an evaluated run.

    Args:
        path: Folder to create.
        metrics: Content of its `metrics.json`.
        name: Preset of the run.
        changes: Settings that differ from the preset, as `field=value`.
    """
    folder = RunFolder(path)
    folder.create(override(preset(name), list(changes)), "controlvae train ...")
    folder.metrics_file.write_text(json.dumps(metrics))
    return folder


def mig_run(path, seed, mig):
    """Create the folder of a run of shapes2d-control-16 with this seed and MIG."""
    metrics = {"step": 1_500_000, "mig_sampled": {"score": mig}}
    return evaluated_run(path, metrics, changes=[f"training.seed={seed}"])


def mig_runs(folder, values):
    """Create one run below `folder` for each MIG, with seeds from 1."""
    return [mig_run(folder / f"seed-{seed}", seed, mig) for seed, mig in enumerate(values, start=1)]


def scored_codes(folder):
    """Write and score `codes/theirs-0.npz` and `codes/theirs-1.npz`, which stand for two seeds.

    They have two factors, of which the second, `kind`, is unordered.

    Returns:
        Means, log-variances and factors of the second file.
    """
    rng = np.random.default_rng(0)
    factors = rng.integers(0, 4, (400, 2))
    means = np.column_stack([factors + rng.normal(0, 0.1, (400, 2)), rng.normal(size=400)])
    log_variances = np.log([[0.02, 0.3, 1.0]]).repeat(400, 0)
    names = {"factor_names": ["size", "kind"], "unordered": ["kind"]}
    (folder / "codes").mkdir()
    files = [f"codes/theirs-{seed}.npz" for seed in (0, 1)]
    for seed, rows in enumerate((slice(0, 300), slice(100, 400))):
        arrays = {"means": means, "log_variances": log_variances, "factors": factors}
        selected = {name: values[rows] for name, values in arrays.items()}
        np.savez(folder / files[seed], **selected, **names, reconstruction=20.0 + seed)
    done = within("score", *files, "--device", "cpu", cwd=folder)
    assert done.returncode == 0, done.stderr
    return means[100:], log_variances[100:], factors[100:]


def read_scores(folder, name):
    """Return the scores of `NAME.npz`."""
    return json.loads((folder / f"{name}.scores.json").read_text())
