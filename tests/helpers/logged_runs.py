"""Run folders with a made-up log, for tests that only read them."""

import json

import numpy as np

from controlvae.lab.config import override, preset
from controlvae.lab.runs.folder import RunFolder

LATENTS = [0.001, 3.0, 1.5]  # nats
METRICS = {
    "step": 6_000,
    "kl_per_latent": LATENTS,
    "mig_sampled": {"score": 0.5},
    "rmig": {
        "score": 0.4,
        "per_factor": {"shape": 0.1, "x": 0.7},
        "mutual_information": [[0.0, 0.02, 0.6], [0.001, 2.5, 0.4]],
        "estimator": "RMIG with 100 bins",
    },
}


def logged_run(path, name, seed, steps, evaluated=True, **columns):
    """Create a run folder whose log values differ from line to line and from seed to seed."""
    folder = RunFolder(path / name / f"seed-{seed}")
    folder.create(override(preset(name), [f"training.seed={seed}"]), "controlvae train ...")
    values = np.random.default_rng(seed).uniform(10, 20, (steps // 500, 2))
    records = [
        {
            "step": 500 * (place + 1),
            "reconstruction": reconstruction,
            "beta": beta,
            "kl": 4.5,
            "target": 5.0,
            "kl_per_latent": LATENTS,
            **columns,
        }
        for place, (reconstruction, beta) in enumerate(values.tolist())
    ]
    folder.log_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    if evaluated:
        folder.metrics_file.write_text(json.dumps(METRICS))
    return folder
