"""The verdict of a report in words: which runs hold their targets, and what each gains and pays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from controlvae.diagnostics.collapse import count_used_latents
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.evaluation.registry import Metric, find_metric
from controlvae.lab.reports.target_error import TargetError, is_on_target, measure_target_error
from controlvae.lab.runs.folder import look_up, mean_of_last_tenth
from controlvae.lab.runs.loaded import format_count

Status = Literal["on target", "off target", "no target", "not trained"]


@dataclass(frozen=True)
class Outcome:
    """What the verdict on a run is based on."""

    name: str
    records: Sequence[Mapping[str, Any]]  # the log
    metrics: Mapping[str, Any] = field(default_factory=dict)  # empty if not evaluated
    controlled: str = "kl"  # log column that the target refers to
    weight: str = "β follows a schedule"  # description of an open-loop β
    is_plain: bool = False  # a plain VAE: constant β = 1
    task: str = ""  # data and likelihood; only runs of one task are compared
    method: str = ""  # everything but the seed; seeds of one method are not compared
    seed: int = 0

    @cached_property
    def target_error(self) -> TargetError | None:
        """Distance of the end from the target, or None without a log or a target."""
        return measure_target_error(self.records, self.controlled)


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on one run."""

    name: str
    status: Status
    text: str
    comparison: str = ""  # gains and costs against the baseline; empty without one


# Paths in metrics.json. The first three are columns of the log, too.
_LOGGED = ("reconstruction", "elbo", "kl")
_COMPARED = (*_LOGGED, "fid.samples.score", "mig_sampled.score")
_MAX_NAMED_RUNS = 5  # in the headline
_LATENTS = "kl_per_latent"
_USED_LATENTS = Metric("", "used latents", "latents", "higher", decimals=0)


def report_verdict(outcomes: Sequence[Outcome]) -> tuple[str, list[RunVerdict]]:
    """Return a headline and a verdict on each run.

    A run is compared with the plain VAE on the same data, or else with another run without a
    target, or else with the first run. The baseline of the same seed is preferred.
    """
    verdicts = [_judge(outcome, outcomes) for outcome in outcomes]
    return _headline(verdicts), verdicts


def _headline(verdicts: Sequence[RunVerdict]) -> str:
    held = [verdict.name for verdict in verdicts if verdict.status == "on target"]
    missed = [verdict.name for verdict in verdicts if verdict.status == "off target"]
    total = len(held) + len(missed)
    if all(verdict.status == "not trained" for verdict in verdicts):
        return "Nothing has been trained yet."
    if total == 0:
        return "None of these runs has a target." if len(verdicts) > 1 else "No target was set."
    if total == 1:
        name = (held or missed)[0] if len(verdicts) > 1 else "The run"
        return f"{name} {'holds' if held else 'misses'} its target."
    if not missed:
        return f"All {total} runs with a target hold it."
    if not held:
        return f"None of the {total} runs with a target holds it."
    names = "; ".join(missed[:_MAX_NAMED_RUNS])
    if len(missed) > _MAX_NAMED_RUNS:
        names += f" and {len(missed) - _MAX_NAMED_RUNS} more"
    return f"{len(held)} of {total} runs with a target hold it; missed by {names}."


def _judge(outcome: Outcome, outcomes: Sequence[Outcome]) -> RunVerdict:
    if not outcome.records:
        return RunVerdict(outcome.name, "not trained", "has not been trained yet.")
    error = outcome.target_error
    if error is None:
        kl = mean_of_last_tenth(outcome.records, "kl")
        status: Status = "no target"
        text = f"has no target: {outcome.weight}, and the KL ends at {format_nats(kl)} nats."
    else:
        status = "on target" if is_on_target(error) else "off target"
        text = _describe_error(error, QUANTITY_LABELS[outcome.controlled])
    baseline = choose_baseline(outcome, outcomes)
    if baseline is None:
        return RunVerdict(outcome.name, status, text)
    return RunVerdict(outcome.name, status, text, compare_outcomes(outcome, baseline))


def _describe_error(error: TargetError, quantity: str) -> str:
    verb = "holds" if is_on_target(error) else "misses"
    relative = "" if error.target == 0 else f" ({100 * error.relative:+.1f} %)".replace("-", "−")
    text = (
        f"{verb} its target: {quantity} {format_nats(error.mean)} nats for a target of "
        f"{format_nats(error.target)}{relative}, mean over the last tenth of the steps"
    )
    if error.saturated is None:
        return f"{text}."
    if error.saturated == 0:
        return f"{text}; β was not saturated."
    return f"{text}; β was saturated in {100 * error.saturated:.0f} % of them."


def choose_baseline(outcome: Outcome, outcomes: Sequence[Outcome]) -> Outcome | None:
    """Choose the run to compare with.

    Returns:
        None if there is no other method on the same data, or if `outcome` is itself the baseline.
    """
    same_task = [o for o in outcomes if o.task == outcome.task and o.records]
    plain = [o for o in same_task if o.is_plain]
    open_loop = [o for o in same_task if o.target_error is None]
    candidates = plain or open_loop or same_task[:1]
    methods = [o.method for o in candidates]
    if not candidates or outcome.method in (methods if plain else methods[:1]):
        return None
    same_seed = [o for o in candidates if o.seed == outcome.seed]
    return (same_seed or candidates)[0]


def compare_outcomes(outcome: Outcome, baseline: Outcome) -> str:
    """Return what a run gains and pays against a baseline, with signs and units.

    The numbers are those of the evaluation if both runs were evaluated on the same examples, and
    means over the last tenth of the training log otherwise.
    """
    are_evaluated = _are_evaluated_alike(outcome, baseline)
    gains, costs, others = [], [], []
    for metric, difference in _differences(outcome, baseline, are_evaluated):
        unit = " nats" if metric.unit.startswith("nats") else ""
        name = metric.name.partition(",")[0]  # "FID" instead of "FID, samples"
        text = f"{name} {_signed(difference, metric.decimals)}{unit}"
        rounded = round(difference, metric.decimals)
        if metric.better is None or rounded == 0:
            others.append(text)
        elif (rounded > 0) == (metric.better == "higher"):
            gains.append(text)
        else:
            costs.append(text)
    parts = [f"gains {', '.join(gains)}"] if gains else []
    parts += [f"pays {', '.join(costs)}"] if costs else []
    parts += [", ".join(others)] if others else []
    basis = _describe_basis(outcome, are_evaluated)
    return f"Compared with {baseline.name}: {'; '.join(parts)}. Measured {basis}."


def compared_values(
    outcome: Outcome, baseline: Outcome
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the terms of two runs, measured on the same examples.

    Returns:
        `elbo`, `reconstruction`, `kl` and `kl_per_latent` of each run, None where unknown, and a
        description of the examples, as in `compare_outcomes`.
    """
    are_evaluated = _are_evaluated_alike(outcome, baseline)
    own, plain = (
        {
            **{
                path: each.metrics.get(path) if are_evaluated else _final_mean(each, path)
                for path in _LOGGED
            },
            _LATENTS: (each.metrics if are_evaluated else each.records[-1]).get(_LATENTS),
        }
        for each in (outcome, baseline)
    )
    return own, plain, _describe_basis(outcome, are_evaluated)


def _are_evaluated_alike(outcome: Outcome, baseline: Outcome) -> bool:
    evaluated_on = _evaluated_on(outcome)
    return evaluated_on is not None and evaluated_on == _evaluated_on(baseline)


def _describe_basis(outcome: Outcome, are_evaluated: bool) -> str:
    if are_evaluated:
        return f"on {_evaluated_on(outcome)}"
    return "on the training batches of the last tenth of the steps"


def _evaluated_on(outcome: Outcome) -> str | None:
    metrics = outcome.metrics
    if "elbo" not in metrics or "examples" not in metrics:
        return None
    return format_count(metrics["examples"], metrics.get("split", "all"))


def _differences(
    outcome: Outcome, baseline: Outcome, are_evaluated: bool
) -> Iterator[tuple[Metric, float]]:
    """Yield each metric that both runs have, with its difference."""
    for path in _COMPARED if are_evaluated else _LOGGED:
        first, second = (
            look_up(each.metrics, path) if are_evaluated else _final_mean(each, path)
            for each in (outcome, baseline)
        )
        if first is not None and second is not None:
            yield find_metric(path), first - second
    latents = [
        kl_per_latent
        for each in (outcome, baseline)
        if (kl_per_latent := (each.metrics if are_evaluated else each.records[-1]).get(_LATENTS))
    ]
    if len(latents) == 2:
        count, reference = map(count_used_latents, latents)
        yield _USED_LATENTS, count - reference


def _final_mean(outcome: Outcome, column: str) -> float | None:
    is_logged = column in outcome.records[-1]
    return mean_of_last_tenth(outcome.records, column) if is_logged else None


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if round(value, digits) else f"±{text[1:]}"
