"""Registry of metrics: the one place that says what `evaluate` computes and how it is shown.

`evaluate`, the command line, reports and paper tables take names, units and directions from here.
A new disentanglement score needs a function in `controlvae.metrics` and one entry in
`DISENTANGLEMENT_SCORES`. Any other metric needs an entry in the group that computes it.
"""

from collections.abc import Mapping
from dataclasses import replace

from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.data.dataset import holds_images
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.evaluation.dialog import dialog_metrics
from controlvae.lab.evaluation.disentanglement import DisentanglementScore, score_run
from controlvae.lab.evaluation.elbo import (
    elbo_metrics,
    measure_step_response,
    training_elbo_metrics,
)
from controlvae.lab.evaluation.images import custom_metrics, image_metrics
from controlvae.lab.evaluation.metric import Direction, Metric, MetricGroup
from controlvae.lab.evaluation.text import text_metrics
from controlvae.lab.runs.loaded import shows_codes
from controlvae.metrics import beta_vae_score, factor_vae_score, mig_histogram, mig_sampled
from controlvae.metrics.disentanglement import dci, modularity, rmig, sap

_BEST = "best."


# disentanglement_lib's numbers of examples take 12 s on a CPU core, most of it for DCI. It takes
# 10,000 points for a histogram; here they are a random choice, like the rest.
DISENTANGLEMENT_SCORES = (
    DisentanglementScore(
        "mig_sampled",
        "MIG, sampled",
        lambda codes, progress: mig_sampled(
            codes.means,
            codes.log_variances,
            codes.ordered_classes,
            draws=codes.draws,
            factor_names=codes.ordered_names,
            device=codes.means.device,
            progress=progress,
        ),
        needs_log_variances=True,
        needs_quantities=True,
    ),
    DisentanglementScore(
        "rmig",
        "RMIG",
        lambda codes, _: rmig(
            codes.means,
            codes.log_variances,
            codes.classes,
            factor_names=codes.names,
            device=codes.means.device,
        ),
        needs_log_variances=True,
    ),
    DisentanglementScore(
        "mig_histogram",
        "MIG, histogram",
        lambda codes, _: mig_histogram(
            codes.means[:10_000], codes.classes[:10_000], factor_names=codes.names
        ),
    ),
    DisentanglementScore(
        "dci",
        "DCI",
        lambda codes, _: dci(codes.means, codes.classes, factor_names=codes.names),
        values=(
            ("disentanglement", ", disentanglement"),
            ("completeness", ", completeness"),
            ("informativeness", ", informativeness"),
        ),
    ),
    DisentanglementScore(
        "sap",
        "SAP",
        lambda codes, _: sap(codes.means, codes.classes, factor_names=codes.names),
    ),
    DisentanglementScore(
        "sap_continuous",
        "SAP, continuous",
        lambda codes, _: sap(
            codes.means, codes.ordered_values, continuous=True, factor_names=codes.ordered_names
        ),
        needs_quantities=True,
    ),
    DisentanglementScore(
        "factor_vae_score",
        "FactorVAE score",
        lambda codes, _: factor_vae_score(codes.means, codes.classes),
    ),
    DisentanglementScore(
        "beta_vae_score",
        "β-VAE score",
        lambda codes, _: beta_vae_score(codes.means, codes.classes),
    ),
    DisentanglementScore(
        "modularity",
        "modularity",
        lambda codes, _: modularity(codes.means[:10_000], codes.classes[:10_000]),
    ),
)

_NATS = "nats per example"


def _nats(path: str, name: str, better: Direction | None = None) -> Metric:
    return Metric(path, name, _NATS, better)


def _kid(path: str, name: str) -> Metric:
    return Metric(path, name, better="lower", factor=1_000)


_IWAE = (
    _nats("iwae.bound", "IWAE", "higher"),
    _nats("iwae.elbo_of_the_same", "ELBO, examples of the IWAE", "higher"),
)

ELBO_METRICS = (
    _nats("elbo", "ELBO", "higher"),
    _nats("reconstruction", "reconstruction", "lower"),
    _nats("kl", "KL"),
    Metric("active_units", "active units (Burda et al.)", "latents", decimals=0),
    _nats("mutual_information.lower", "mutual information", "higher"),
)
TRAINING_METRICS = (
    _nats("train.elbo", "ELBO, training set", "higher"),
    _nats("train.reconstruction", "reconstruction, training set", "lower"),
    _nats("train.kl", "KL, training set"),
)
STEP_RESPONSE_METRICS = (
    Metric("step_response.settling_time", "settled at step", "steps", "lower", decimals=0),
    Metric("step_response.overshoot", "overshoot", "%", "lower", decimals=1, factor=100),
    Metric("step_response.steady_state_error", "steady-state error", "%", factor=100),
    Metric("step_response.steady_state_spread", "steady-state spread", "%", "lower", factor=100),
)
IMAGE_METRICS = (
    *_IWAE,
    Metric("bits_per_dimension.elbo", "bits per dimension", "bits", "lower", decimals=4),
    Metric("likeness.ssim", "SSIM", better="higher", decimals=3),
    Metric("likeness.psnr", "PSNR, dB", "dB", "higher"),
    Metric("fid.samples.score", "FID, samples", better="lower"),
    Metric("fid.reconstructions.score", "FID, reconstructions", better="lower"),
    _kid("kid.samples.score", "KID x 1000, samples"),
    _kid("kid.reconstructions.score", "KID x 1000, reconstructions"),
)
SCORE_METRICS = tuple(
    Metric(f"{score.key}.{value}", f"{score.name}{suffix}", better="higher", decimals=3)
    for score in DISENTANGLEMENT_SCORES
    for value, suffix in score.values
)


def _text_metrics(key: str) -> tuple[Metric, ...]:
    """Return the metrics of sentences and of responses, which are stored under different keys."""
    return (
        Metric(f"{key}.perplexity", "perplexity, ELBO", better="lower"),
        Metric(f"{key}.iwae_perplexity", "perplexity, IWAE", better="lower"),
        Metric(f"{key}.reconstruction_perplexity", "perplexity, reconstruction", better="lower"),
        Metric(f"{key}.self_bleu_2", "self-BLEU-2", better="lower", decimals=3),
        Metric(f"{key}.self_bleu_3", "self-BLEU-3", better="lower", decimals=3),
    )


def _distinct(path: str, name: str, unit: str = "") -> Metric:
    return Metric(path, name, unit, "higher", decimals=0 if unit else 3)


SENTENCE_METRICS = (
    *_text_metrics("text"),
    _nats("text.paper_elbo", "−(reconstruction + β·KL)", "higher"),
    _distinct("text.distinct_1", "distinct 1-grams"),
    _distinct("text.distinct_2", "distinct 2-grams"),
)
DIALOG_METRICS = (
    *_text_metrics("dialog"),
    Metric("dialog.paper_perplexity", "perplexity, paper", better="lower"),
    Metric("dialog.validation_perplexity", "perplexity, paper, validation", better="lower"),
    Metric("dialog.paper_self_bleu_2", "self-BLEU-2, paper", better="lower", decimals=3),
    Metric("dialog.paper_self_bleu_3", "self-BLEU-3, paper", better="lower", decimals=3),
    _distinct("dialog.distinct_1", "distinct 1-grams", "n-grams"),
    _distinct("dialog.distinct_2", "distinct 2-grams", "n-grams"),
    *(
        Metric(f"dialog.bleu_{n}_{kind}", f"BLEU-{n}, {kind}", better="higher", decimals=3)
        for n in (1, 2, 3)
        for kind in ("precision", "recall")
    ),
)

# In the order of metrics.json.
GROUPS = (
    MetricGroup(
        "elbo",
        lambda e: elbo_metrics(e.measured, e.examples, e.progress),
        lambda e: True,
        ELBO_METRICS,
        progress=(0.0, 0.2),
    ),
    MetricGroup(
        "training set",
        lambda e: {"train": training_elbo_metrics(e.trained, e.examples)},
        lambda e: e.measured is not e.trained,
        TRAINING_METRICS,
        progress=(0.2, 0.2),
    ),
    MetricGroup(
        "step response",
        lambda e: {"step_response": measure_step_response(e.trained.folder)},
        lambda e: True,
        STEP_RESPONSE_METRICS,
        progress=(0.2, 0.2),
    ),
    MetricGroup(
        "images",
        lambda e: image_metrics(
            e.measured,
            e.results["elbo"]["elbo"],
            e.importance_samples,
            e.fid_images,
            e.progress,
            examples=e.examples,
        ),
        lambda e: holds_images(e.measured.examples),
        IMAGE_METRICS,
        progress=(0.2, 0.6),
    ),
    MetricGroup(
        "other data of the user",
        lambda e: custom_metrics(e.measured, e.importance_samples, e.progress),
        lambda e: (
            isinstance(e.measured.examples, UserExamples) and not holds_images(e.measured.examples)
        ),
        _IWAE,
        progress=(0.2, 0.6),
    ),
    # The training set is larger, and ground truth is known for it.
    MetricGroup(
        "disentanglement",
        lambda e: score_run(e.trained, DISENTANGLEMENT_SCORES, e.progress),
        lambda e: e.trained.examples.factors is not None and shows_codes(e.trained),
        SCORE_METRICS,
        progress=(0.6, 1.0),
    ),
    MetricGroup(
        "sentences",
        lambda e: text_metrics(e.measured, e.results["elbo"], e.importance_samples),
        lambda e: isinstance(e.measured.examples, SentenceDataset),
        (*_IWAE, *SENTENCE_METRICS),
        progress=(0.6, 1.0),
    ),
    MetricGroup(
        "dialogs",
        lambda e: dialog_metrics(e.measured, e.results["elbo"], e.importance_samples),
        lambda e: isinstance(e.measured.examples, DialogDataset),
        (*_IWAE, *DIALOG_METRICS),
        progress=(0.6, 1.0),
    ),
)

_BY_PATH: Mapping[str, Metric] = {
    metric.path: metric for group in GROUPS for metric in group.metrics
}
_ENTRY_NAMES: Mapping[str, str] = {
    **{path: metric.name for path, metric in _BY_PATH.items() if "." not in path},
    **{score.key: score.name for score in DISENTANGLEMENT_SCORES},
    "fid": "FID",
    "iwae": "IWAE",
    "kid": "KID",
    "kl_per_latent": "KL per latent",
}


def find_metric(path: str) -> Metric:
    """Return the metric at a path of metrics.json.

    A path that begins with `best.` gives the metric of the weights that were best on validation
    examples.
    """
    if path.startswith(_BEST):
        metric = find_metric(path.removeprefix(_BEST))
        return replace(metric, path=path, name=f"{metric.name}, best by validation")
    if path not in _BY_PATH:
        raise KeyError(f"no metric is registered at {path!r}; add it to registry.py")
    return _BY_PATH[path]


def entry_name(key: str) -> str:
    """Return the human-readable name of a top-level entry of metrics.json."""
    return _ENTRY_NAMES.get(key, key.replace("_", " "))
