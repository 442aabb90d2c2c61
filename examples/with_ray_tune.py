"""Search with Ray Tune over run folders. `controlvae search` needs no Ray; this is for its users.

    pip install 'ray[tune]'
    python examples/with_ray_tune.py --trials 8

A trial is a run folder below `runs/ray`. Ray proposes the settings, schedules the trials on its
cluster, and stops hopeless ones by their validation curve. A trial that Ray starts again, after a
failure or a stop, resumes its run from the last checkpoint.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from controlvae import lab

STEPS, EVERY = 600, 100
OVERRIDES = {
    "training.steps": STEPS,
    "training.validation": 0.1,
    "training.validate_every": EVERY,
    "data.images": 1_000,
    "model.channels": (8, 8, 8),
    "model.hidden": 32,
}


def make_trainable(preset: str, folder: Path, overrides: dict[str, Any]) -> Callable[..., None]:
    """Return a function that trains one trial of Ray Tune in a run folder.

    Args:
        preset: Name of a preset, or a file such as `my_vae.py`.
        folder: Folder of all runs. On a cluster it has to be shared.
        overrides: Settings that are the same in every trial.
    """

    steps = overrides["training.steps"]

    def train(config: dict[str, Any]) -> None:
        run = lab.RunFolder(folder / tune.get_context().get_trial_id())
        reported = 0

        def report(points: list[dict[str, Any]]) -> None:
            """Pass new points of the validation curve on. Ray ends a hopeless trial in this call."""
            nonlocal reported
            for point in points[reported:]:
                reported += 1
                tune.report({**point, "run": str(run.path)})

        def report_progress(_: Any) -> None:
            # The last point waits for the last checkpoint: Ray may end the trial with it.
            report([point for point in run.validations() if point["step"] < steps])

        options = {"device": "cpu", "threads": 1, "checkpoint_every": 2.0}
        if run.experiment_file.is_file():
            lab.resume(run, progress=report_progress, **options)
        else:
            settings = overrides | config
            lab.train(preset, run=run.path, overrides=settings, progress=report_progress, **options)
        report(run.validations())

    return train


def main() -> None:
    """Search for the target and the learning rate with the best ELBO."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--run", type=Path, default=Path("runs/ray"))
    arguments = parser.parse_args()
    space = {
        "control.target": tune.uniform(4, 20),
        "optimiser.rate": tune.loguniform(1e-4, 1e-2),
    }
    trainable = make_trainable("shapes2d-quick", arguments.run.resolve(), OVERRIDES)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="elbo",
            mode="max",
            num_samples=arguments.trials,
            scheduler=ASHAScheduler(time_attr="step", max_t=STEPS, grace_period=2 * EVERY),
        ),
        run_config=tune.RunConfig(name="controlvae", verbose=1),
    )
    best = tuner.fit().get_best_result()
    metrics = best.metrics or {}
    print(f"best ELBO {metrics['elbo']:.2f} at step {metrics['step']} with {best.config}")
    print(f"its report: controlvae report {metrics['run']}")


if __name__ == "__main__":
    main()
