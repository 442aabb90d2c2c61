"""The verdict of a report, and the distance of a run from its target."""

import pytest

from controlvae.lab.reports.target_error import is_on_target, measure_target_error
from controlvae.lab.reports.verdict import (
    Outcome,
    choose_baseline,
    compare_outcomes,
    report_verdict,
)

EVALUATION = {"examples": 100, "split": "test", "step": 1_000}


def log(kl=18.0, target=18.0, saturated=0.0, **columns):
    """Return a log of 1,000 steps with constant values."""
    line = {"kl": kl, "reconstruction": 30.0, "elbo": -48.0, "beta": 0.5, "target": target}
    line |= {"saturated": saturated, **columns}
    return [{"step": 100 * n, **line} for n in range(1, 11)]


def plain_vae(**changes):
    defaults = {"weight": "β is constant at 1", "is_plain": True, "method": "vae"}
    records = log(kl=12.0, target=None, reconstruction=33.0, elbo=-45.0)
    return Outcome("vae", records, **{**defaults, **changes})


def test_error_is_the_mean_over_the_last_tenth():
    records = log(kl=20.0)
    records[-1] |= {"kl": 17.1, "saturated": 0.25}
    error = measure_target_error(records, "kl")
    assert (error.mean, error.target, error.saturated) == (17.1, 18.0, 0.25)
    assert error.relative == pytest.approx(-0.05)
    assert is_on_target(error)


@pytest.mark.parametrize(
    "records", [[], log(target=None), log(target=0.0)], ids=["empty", "none", "0"]
)
def test_no_error_without_a_target(records):
    assert measure_target_error(records, "kl") is None


@pytest.mark.parametrize(
    ("kl", "status", "verb", "sign"),
    [(18.2, "on target", "holds", "+1.1 %"), (12.0, "off target", "misses", "−33.3 %")],
)
def test_verdict_states_error_and_saturation(kl, status, verb, sign):
    headline, [verdict] = report_verdict([Outcome("a", log(kl=kl, saturated=0.4))])
    assert verdict.status == status
    assert verb in headline
    for part in (verb, f"{kl:.2f} nats", "18.00", sign, "saturated in 40 %"):
        assert part in verdict.text
    assert verdict.comparison == ""


def test_headline_counts_runs_with_a_target():
    held, missed = Outcome("a", log(), method="a"), Outcome("b", log(kl=3.0), method="b")
    headline, verdicts = report_verdict([held, missed, plain_vae(), Outcome("new", [])])
    assert headline == "1 of 2 runs with a target hold it; missed by b."
    assert [v.status for v in verdicts] == ["on target", "off target", "no target", "not trained"]
    assert "β is constant at 1" in verdicts[2].text


def test_comparison_separates_gains_from_costs():
    evaluated = {"reconstruction": 28.0, "elbo": -46.0, "kl": 18.0, "kl_per_latent": [2.0] * 9}
    run = Outcome("a", log(), {**EVALUATION, **evaluated, "fid": {"samples": {"score": 60.0}}})
    baseline = {
        "reconstruction": 31.5,
        "elbo": -43.5,
        "kl": 12.0,
        "kl_per_latent": [2.0] * 7 + [0.001] * 2,
    }
    vae = plain_vae(metrics={**EVALUATION, **baseline, "fid": {"samples": {"score": 64.5}}})
    text = compare_outcomes(run, vae)
    gains, costs, kl = text.partition(": ")[2].partition(". ")[0].split("; ")
    assert gains == "gains reconstruction −3.50 nats, FID −4.50, used latents +2"
    assert costs == "pays ELBO −2.50 nats"
    assert kl == "KL +6.00 nats"
    assert "100 examples (test)" in text


def test_comparison_uses_the_log_unless_both_are_evaluated():
    run = Outcome("a", log(), {**EVALUATION, "elbo": -1.0, "reconstruction": 1.0, "kl": 1.0})
    text = compare_outcomes(run, plain_vae())
    assert "reconstruction −3.00 nats" in text
    assert "training batches" in text
    assert "used latents" not in text


def test_baseline_is_the_plain_vae_of_the_same_seed_and_task():
    vaes = [plain_vae(seed=seed) for seed in (1, 2)]
    other = plain_vae(task="other data", seed=3)
    run = Outcome("a", log(), method="pi", seed=2)
    runs = [other, *vaes, run]
    assert choose_baseline(run, runs) is vaes[1]
    assert choose_baseline(vaes[1], runs) is None
    assert choose_baseline(Outcome("b", log(), method="pi", seed=7), runs) is vaes[0]


def test_seeds_of_one_method_are_not_compared():
    seeds = [Outcome(f"seed {seed}", log(), method="pi", seed=seed) for seed in (1, 2)]
    assert [choose_baseline(seed, seeds) for seed in seeds] == [None, None]
    other = Outcome("c", log(), method="pid", seed=2)
    assert choose_baseline(other, [*seeds, other]) is seeds[0]
