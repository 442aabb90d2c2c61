"""Sentences and responses of language models, as a report shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlvae.lab.reports.formatting import format_number
from controlvae.lab.reports.report_run import ReportRun

RESPONSES_SHOWN = 5  # per context, as in the paper
UTTERANCES_SHOWN = 4  # last ones of a context; metrics.json has them all


@dataclass(frozen=True)
class DialogView:
    """Responses of a dialog model and the metrics on them."""

    rows: list[tuple[list[str], str, list[str]]]  # context, true response, responses of the model
    metrics: str


@dataclass(frozen=True)
class TextView:
    """Sentences of text models: samples, reconstructions and the metrics on them, per run."""

    names: list[str]
    samples: list[list[str]]  # one list per run
    sentences: list[str]  # empty if the runs reconstruct different sentences
    reconstructions: list[list[str]]  # one list per run
    metrics: list[str]  # one text per run


def dialog_view(dialog: Mapping[str, Any]) -> DialogView:
    """Build the view of a dialog model from the `dialog` entry of its metrics."""
    rows = [
        (
            sample["context"][-UTTERANCES_SHOWN:],
            sample["reference"],
            sample["responses"][:RESPONSES_SHOWN],
        )
        for sample in dialog["samples"]
    ]
    return DialogView(rows, _describe_dialog(dialog))


def _describe_dialog(dialog: Mapping[str, Any]) -> str:
    return (
        f"{describe_perplexities(dialog)} "
        f"Over {dialog['responses']:,} responses to {dialog['contexts']:,} contexts "
        f"({dialog['responses_from']}): Dis-1 {dialog['distinct_1']:,}, "
        f"Dis-2 {dialog['distinct_2']:,} ({dialog['distinct_of']}); distinct share of all words "
        f"{dialog['distinct_1_ratio']:.4f}, of all pairs {dialog['distinct_2_ratio']:.4f}; "
        f"self-BLEU-2 {dialog['self_bleu_2']:.3f}, self-BLEU-3 {dialog['self_bleu_3']:.3f} "
        f"({dialog['self_bleu_of']}); BLEU-2 with the true response "
        f"{dialog['bleu_2_precision']:.3f} on average, {dialog['bleu_2_recall']:.3f} for the best "
        f"response to each context."
    )


def text_views(runs: Sequence[ReportRun]) -> list[TextView]:
    """Build views of all text models, one for each group that reconstructs the same sentences."""
    groups: dict[tuple[str, ...], list[ReportRun]] = {}
    for run in runs:
        if "text" in run.metrics:
            pairs = run.metrics["text"].get("read_back", ())  # older metrics files lack it
            groups.setdefault(tuple(pair["sentence"] for pair in pairs), []).append(run)
    return [_text_view(group, list(sentences)) for sentences, group in groups.items()]


def _text_view(runs: Sequence[ReportRun], sentences: list[str]) -> TextView:
    texts = [run.metrics["text"] for run in runs]
    return TextView(
        [run.name for run in runs],
        [text["samples"] for text in texts],
        sentences,
        [[pair["read_back"] for pair in text.get("read_back", ())] for text in texts],
        [_describe_text(text) for text in texts],
    )


def _describe_text(text: Mapping[str, Any]) -> str:
    paper = (
        f"The paper's curve: {format_number(text['paper_elbo'])} ({text['paper_elbo_of']}). "
        if "paper_elbo" in text
        else ""
    )
    return (
        f"{describe_perplexities(text)} "
        f"ELBO per token {format_number(text['elbo_per_token'], 3)} nats. {paper}"
        f"Over {text['written']} sentences from {text['written_from']}: distinct words "
        f"{text['distinct_1']:.3f}, pairs {text['distinct_2']:.3f}; self-BLEU-2 "
        f"{text['self_bleu_2']:.3f}, self-BLEU-3 {text['self_bleu_3']:.3f}."
    )


def describe_perplexities(metrics: Mapping[str, Any]) -> str:
    """Describe each measured perplexity of sentences or responses, and what it is based on."""
    parts = []
    for kind in ("perplexity", "iwae_perplexity", "reconstruction_perplexity"):
        if kind in metrics:
            value = metrics[kind]
            number = "too large" if value is None else f"{value:.2f}"
            parts.append(f"{number} ({metrics[f'{kind}_of']})")
    return f"Perplexity {'; '.join(parts)}."
