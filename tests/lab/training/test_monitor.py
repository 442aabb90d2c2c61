"""The training monitor: unreachable targets, noise, and lagging critics."""

import math

from controlvae.lab.config import override, preset
from controlvae.lab.objectives.total_correlation import min_total_correlation
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.loop import Run


def test_noisy_saturated_beta_counts_as_being_at_its_bound(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create(preset("celeba-control-155"), "")
    run = Run.open(folder)
    line = {"saturated": 0.85, "target": 155.0}
    # β swings between its bounds, then stays at one of them, then the target is reached.
    for step in range(1, 61):
        beta, kl = (0.4, 160.9) if step < 21 else (0.9997, 160.9 if step < 41 else 156.0)
        run.monitor.check({**line, "step": step, "beta": beta, "kl": kl})
    run.logger.close()
    events = [(event["event"], event["step"]) for event in folder.events()]
    assert events == [("target out of reach", 30), ("target in reach again", 41)]
    assert folder.events()[0]["bound"] == 1.0


def test_target_below_the_noise_is_reported_once(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create(override(preset("shapes2d-control-factor"), ["control.target=0.01"]), "")
    run = Run.open(folder)
    line = {"target": 0.01, "tc": 0.02, "beta": 9.0, "saturated": 0.0, "kl": 5.0}
    # The noise exceeds the target in two records, not in the third, then in all others.
    for step in range(1, 13):
        run.monitor.check({**line, "step": step, "tc_sd": 0.001 if step == 3 else 0.08})
    run.logger.close()
    assert [(event["event"], event["step"]) for event in folder.events()] == [
        ("target within noise", 6)
    ]
    assert "the total correlation scatters by 0.08 nats" in run.monitor.messages[0]
    assert len(run.monitor.messages) == 1


def test_critic_with_more_accuracy_than_its_estimate_is_lagging(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create(preset("shapes2d-control-factor"), "")
    run = Run.open(folder)
    # The sign of the product of two Gaussians with correlation r is positive with probability
    # 1/2 + asin(r)/π, and 1/2 for independent ones.
    correlation, right = 0.8, 0.5 + math.asin(0.8) / (2 * math.pi)
    truth = -0.5 * math.log(1 - correlation**2)
    assert 0 < min_total_correlation(right) < truth
    line = {
        "target": 0.3,
        "tc_sd": 0.01,
        "beta": 0.0,
        "saturated": 1.0,
        "kl": 5.0,
        "kl_per_latent": [5.0],
    }
    estimates = [0.05] * 12 + [truth] * 12 + [0.05] * 2
    for step, estimate in enumerate(estimates, start=1):
        run.monitor.check({**line, "step": step, "tc": estimate, "critic_accuracy": right})
        if step == 12:  # β is at its bound, but a poor estimate cannot show an unreachable target
            warnings = " ".join(run_warnings(folder, is_training=True))
            assert "estimate of the total correlation" in warnings
    run.logger.close()
    events = [(event["event"], event["step"]) for event in folder.events()]
    assert events == [("critic behind", 3), ("critic up again", 13), ("target out of reach", 22)]
    assert "objective.critic_optimiser.rate" in run.monitor.messages[0]
