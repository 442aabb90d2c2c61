"""Registry of metrics: the one place that says what `evaluate` computes and how it is shown.

`evaluate`, the command line, reports and paper tables take names, units and directions from here.
A new disentanglement score needs a function in `controlvae.metrics` and one entry in `scores.py`.
Any other metric needs an entry in the group that computes it.
"""

from collections.abc import Mapping
from dataclasses import replace

from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.data.dataset import holds_images
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.evaluation.dialog import dialog_metrics
from controlvae.lab.evaluation.disentanglement import score_run
from controlvae.lab.evaluation.elbo import (
    elbo_metrics,
    measure_step_response,
    training_elbo_metrics,
)
from controlvae.lab.evaluation.images import custom_metrics, image_metrics
from controlvae.lab.evaluation.metric import Direction, Evaluation, Metric, MetricGroup
from controlvae.lab.evaluation.scores import DISENTANGLEMENT_SCORES, selected_scores
from controlvae.lab.evaluation.text import text_metrics
from controlvae.lab.evaluation.written import measure_written
from controlvae.lab.runs.loaded import shows_codes

_BEST = "best."


_NATS = "nats per example"


def _nats(path: str, name: str, better: Direction | None = None) -> Metric:
    return Metric(path, name, _NATS, better)


def _kid(path: str, name: str) -> Metric:
    return Metric(path, name, better="lower", factor=1_000)


def _prdc(key: str, suffix: str) -> tuple[Metric, ...]:
    """Return the scores of quality and variety of prior samples."""
    names = ("precision", "recall", "density", "coverage")
    return tuple(
        Metric(f"{key}.samples.{name}", f"{name}{suffix}", better="higher", decimals=3)
        for name in names
    )


_IWAE = (
    _nats("iwae.bound", "IWAE", "higher"),
    _nats("iwae.elbo_of_the_same", "ELBO, examples of the IWAE", "higher"),
)

ELBO_METRICS = (
    _nats("elbo", "ELBO", "higher"),
    _nats("reconstruction", "reconstruction", "lower"),
    _nats("kl", "KL"),
    Metric("active_units", "active units (Burda et al.)", "latents", decimals=0),
    _nats("total_correlation", "total correlation, Gaussian", "lower"),
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
    Metric("ms_ssim.score", "MS-SSIM", better="higher", decimals=3),
    Metric("lpips.score", "LPIPS", better="lower", decimals=3),
    Metric("fid.samples.score", "FID, samples", better="lower"),
    Metric("fid.reconstructions.score", "rFID (of reconstructions)", better="lower"),
    _kid("kid.samples.score", "KID x 1000, samples"),
    _kid("kid.reconstructions.score", "KID x 1000, reconstructions"),
    *_prdc("prdc", ""),
    Metric("fd_dinov2.samples.score", "FD-DINOv2, samples", better="lower"),
    Metric("fd_dinov2.reconstructions.score", "FD-DINOv2, reconstructions", better="lower"),
    *_prdc("prdc_dinov2", ", DINOv2"),
)
SCORE_METRICS = (
    *(
        Metric(f"{score.key}.{value}", f"{score.name}{suffix}", better="higher", decimals=3)
        for score in DISENTANGLEMENT_SCORES
        for value, suffix in score.values
    ),
    Metric("udr.score", "UDR", better="higher", decimals=3),  # needs several runs, no factors
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

WRITTEN_METRICS = (
    Metric("corpus_bleu.score", "corpus BLEU", better="higher"),
    Metric("mauve.score", "MAUVE", better="higher", decimals=3),
)
_IMAGE_KEYS = (
    *("iwae", "bits_per_dimension", "likeness", "ms_ssim", "lpips"),
    *("fid", "kid", "prdc", "fd_dinov2", "prdc_dinov2"),
)
_SCORE_KEYS = tuple(score.key for score in DISENTANGLEMENT_SCORES)


def _samples(evaluation: Evaluation) -> int:
    """Return the importance samples per example, or 0 if the bound is not selected."""
    return evaluation.importance_samples if evaluation.selection.wants("iwae") else 0


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
            selection=e.selection,
        ),
        lambda e: holds_images(e.measured.examples),
        IMAGE_METRICS,
        progress=(0.2, 0.6),
        keys=_IMAGE_KEYS,
    ),
    MetricGroup(
        "other data of the user",
        lambda e: custom_metrics(e.measured, e.importance_samples, e.progress),
        lambda e: (
            isinstance(e.measured.examples, UserExamples) and not holds_images(e.measured.examples)
        ),
        _IWAE,
        progress=(0.2, 0.6),
        keys=("iwae",),
    ),
    # The training set is larger, and ground truth is known for it.
    MetricGroup(
        "disentanglement",
        lambda e: score_run(e.trained, selected_scores(e.selection), e.progress),
        lambda e: e.trained.examples.factors is not None and shows_codes(e.trained),
        SCORE_METRICS,
        progress=(0.6, 1.0),
        keys=_SCORE_KEYS,
    ),
    MetricGroup(
        "sentences",
        lambda e: text_metrics(e.measured, e.results["elbo"], _samples(e)),
        lambda e: isinstance(e.measured.examples, SentenceDataset),
        (*_IWAE, *SENTENCE_METRICS),
        progress=(0.6, 0.9),
        keys=("iwae", "text"),
    ),
    MetricGroup(
        "dialogs",
        lambda e: dialog_metrics(e.measured, e.results["elbo"], _samples(e)),
        lambda e: isinstance(e.measured.examples, DialogDataset),
        (*_IWAE, *DIALOG_METRICS),
        progress=(0.6, 0.9),
        keys=("iwae", "dialog"),
    ),
    MetricGroup(
        "written text",
        lambda e: measure_written(e.measured, e.selection),
        lambda e: isinstance(e.measured.examples, SentenceDataset | DialogDataset),
        WRITTEN_METRICS,
        progress=(0.9, 1.0),
        keys=("corpus_bleu", "mauve"),
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
    "lpips": "LPIPS",
    "mauve": "MAUVE",
    "ms_ssim": "MS-SSIM",
    "prdc": "precision, recall, density, coverage",
    "fd_dinov2": "FD-DINOv2",
    "prdc_dinov2": "precision, recall, density, coverage (DINOv2)",
    "corpus_bleu": "corpus BLEU",
    "udr": "UDR",
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
