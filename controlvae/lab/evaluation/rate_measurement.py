"""Measurement of a rate-distortion curve on held-out examples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config.rates import RateRange, log_spaced
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.evaluation.images import image_metrics
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.evaluation.rate_curve import (
    Calibration,
    CurvePoint,
    RateCurve,
    run_at_rate,
)
from controlvae.lab.models.dataset_elbo import DatasetElbo, measure_elbo
from controlvae.lab.models.rate_conditioning import find_conditioning
from controlvae.lab.runs.loaded import (
    LoadedRun,
    latent_kl,
    on_unseen_examples,
    require_examples,
    select_examples,
)

_EXAMPLES = 10_000, 2_000  # to measure a point, and to calibrate, on a GPU and on a CPU
_SETTINGS_PER_BIN = 3  # inputs of the network at which its KL is measured
_LAST_SHARE = 0.1  # of the log, over which weights are averaged
_CALIBRATION_STREAM = 23

Progress = Callable[[float], None]


def measure_curve(
    run: LoadedRun,
    rates: Sequence[float] | int = 25,
    *,
    separate: Sequence[LoadedRun] = (),
    examples: int | None = None,
    fid: int = 0,
    progress: Progress = lambda share: None,
) -> RateCurve:
    """Measure the rate-distortion curve of a rate-conditioned run.

    The network is calibrated on training examples first, and measured on held-out examples where
    there are any.

    Args:
        run: Trained run.
        rates: Rates in nats, or their number.
        separate: Runs of single set points on the same data, for comparison.
        examples: Number of examples of a measurement.
        fid: Number of images for FID at every rate. Zero skips it.
        progress: Called with the share that is done.
    """
    require_examples(run)
    wanted = resolve_rates(rate_range(run), rates)
    count = examples or run.example_budget(*_EXAMPLES)
    calibration = calibrate(run, count, wanted)
    unseen = on_unseen_examples(run)
    weights = mean_weights(run)
    points: list[CurvePoint] = []
    for rate in wanted:
        setting = calibration.setting_for(rate)
        point = _measure(run_at_rate(unseen, setting), rate, count, fid)
        points.append(replace(point, setting=setting, price=_interpolate(weights, setting)))
        progress(len(points) / (len(wanted) + len(separate)))
    others = [_measure_separate(other, count, fid) for other in separate]
    progress(1.0)
    used = min(count, unseen.available)
    return RateCurve(
        tuple(points), tuple(others), calibration, run.step, used, unseen.examples.split
    )


def measure_networks(
    runs: Sequence[LoadedRun],
    rates: Sequence[float],
    *,
    separate: Sequence[LoadedRun] = (),
    examples: int | None = None,
    fid: int = 0,
    progress: Progress = lambda share: None,
) -> RateCurve:
    """Measure the rate-distortion curve of networks for one rate each.

    Args:
        runs: Trained runs, one per rate.
        rates: Rates that they were trained for, ascending.
        separate: Further runs on the same data, for comparison.
        examples: Number of examples of a measurement.
        fid: Number of images for FID at every rate. Zero skips it.
        progress: Called with the share that is done.
    """
    count = examples or runs[0].example_budget(*_EXAMPLES)
    found: list[CurvePoint] = []
    for run in (*runs, *separate):
        found.append(_measure_separate(run, count, fid))
        progress(len(found) / (len(runs) + len(separate)))
    points = [replace(point, rate=rate) for point, rate in zip(found, rates, strict=False)]
    unseen = on_unseen_examples(runs[0])
    used = min(count, unseen.available)
    return RateCurve(
        tuple(points),
        tuple(found[len(runs) :]),
        None,
        max(run.step for run in runs),
        used,
        unseen.examples.split,
    )


def rate_range(run: LoadedRun) -> RateRange:
    """Return the range of rates of a run, or raise UserError if it has a single set point."""
    if run.experiment.rates is None:
        raise UserError(
            f"{run.folder.path} was trained at one set point; train a model for all rates with "
            "controlvae curve"
        )
    return run.experiment.rates


def resolve_rates(within: RateRange, rates: Sequence[float] | int) -> tuple[float, ...]:
    """Return rates to measure, evenly spaced on a logarithmic scale if their number is given."""
    if isinstance(rates, int):
        if rates < 2:
            raise UserError(f"points must be at least 2, got {rates}")
        return log_spaced(*within.span, rates)
    low, high = within.span
    for rate in rates:
        if not low <= rate <= high:
            raise UserError(
                f"rates must lie in {low:g}..{high:g} nats, which the model has learnt, "
                f"got {rate:g}"
            )
    return tuple(sorted(float(rate) for rate in rates))


def calibrate(run: LoadedRun, examples: int, rates: Sequence[float] = ()) -> Calibration:
    """Measure the KL of a rate-conditioned run over the rates that it may be given.

    Args:
        run: Trained run over its training examples.
        examples: Number of examples.
        rates: Rates that the calibration should be most exact for.
    """
    within = rate_range(run)
    settings = log_spaced(*within.bounds, _SETTINGS_PER_BIN * within.bins + 1)
    chosen = select_examples(run, examples, _CALIBRATION_STREAM)
    conditioned = run_at_rate(run, within.middle)  # a copy, which is set to each rate below
    found = {setting: _mean_kl(conditioned, setting, chosen) for setting in settings}
    coarse = _as_calibration(found)
    for rate in rates:  # once more where the first guess is
        setting = coarse.setting_for(rate)
        found[setting] = _mean_kl(conditioned, setting, chosen)
    return _as_calibration(found)


def _as_calibration(found: Mapping[float, float]) -> Calibration:
    settings = tuple(sorted(found))
    return Calibration(settings, tuple(found[setting] for setting in settings))


@torch.no_grad()
def _mean_kl(run: LoadedRun, setting: float, chosen: Tensor) -> float:
    """Return the mean KL over examples of a run whose network is given a rate."""
    conditioning = find_conditioning(run.model)
    assert conditioning is not None
    conditioning.set_rate(setting)
    parts = chosen.split(run.examples.eval_batch_size)
    sums = [latent_kl(run, part).sum().item() * len(part) for part in parts]
    return max(sum(sums) / len(chosen), 1e-9)


def mean_weights(run: LoadedRun) -> list[tuple[float, float]]:
    """Return the set points of a run with their weights, averaged over the end of its log."""
    pairs = []
    for set_point in rate_range(run).set_points:
        if (weight := _mean_weight(run, f"beta@{set_point:.3g}")) is not None:
            pairs.append((set_point, weight))
    return pairs


def _interpolate(weights: Sequence[tuple[float, float]], rate: float) -> float | None:
    """Return the weight at a rate, between set points on logarithmic scales."""
    if not weights:
        return None
    places, values = np.log(np.array(weights)).T
    return float(np.exp(np.interp(math.log(rate), places, values)))


def _measure_separate(run: LoadedRun, examples: int, fid: int) -> CurvePoint:
    """Measure a run of a single set point."""
    require_examples(run)
    point = _measure(on_unseen_examples(run), None, examples, fid)
    return replace(point, price=_mean_weight(run, "beta"), label=str(run.folder.path))


def _mean_weight(run: LoadedRun, column: str) -> float | None:
    """Return the geometric mean of a weight over the end of a run's log, or None without one."""
    records = run.folder.records()
    last = records[-max(1, round(_LAST_SHARE * len(records))) :]
    values = [record[column] for record in last if column in record]
    return math.exp(np.mean(np.log(np.maximum(values, 1e-30)))) if values else None


def _measure(run: LoadedRun, rate: float | None, examples: int, fid: int) -> CurvePoint:
    """Measure a run at its present setting."""
    bound = measure_elbo_of(run, examples)
    samples = measure_fid(run, fid) if fid else None
    asked = bound.kl if rate is None else rate
    return CurvePoint(asked, None, bound.kl, bound.reconstruction, bound.elbo, fid=samples)


def measure_fid(run: LoadedRun, images: int) -> float:
    """Return the FID of samples from the prior of a run at its present rate.

    Args:
        run: Run over images.
        images: Number of images of each kind.
    """
    found = image_metrics(run, 0.0, 0, images, selection=Selection(frozenset({"fid"})))
    if "samples" not in found["fid"]:
        raise UserError(f"FID cannot be measured: {found['fid'].get('skipped', 'no samples')}")
    return float(found["fid"]["samples"]["score"])


def measure_elbo_of(run: LoadedRun, examples: int) -> DatasetElbo:
    """Return the ELBO of a run at its present rate, averaged over some of its examples."""
    chosen = select_examples(run, min(examples, run.available))
    noise = torch.Generator().manual_seed(stream_key(0, 11))
    batches = (run.examples.batch(few) for few in chosen.split(run.examples.eval_batch_size))
    return measure_elbo(run.vae, run.experiment.objective.likelihood, batches, noise)
