"""Responses to look at: on the page of a run, and those of several methods side by side."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

RESPONSES_SHOWN = 5  # responses to a context that are shown, as in the paper
UTTERANCES_SHOWN = 4  # utterances of a context that are shown; metrics.json has them all


def responses_section(dialog: Mapping[str, Any]) -> str:
    """What a model of dialogs says, and the numbers about it. HTML."""
    rows = "".join(
        f"<tr><td>{_lines(sample['context'][-UTTERANCES_SHOWN:])}</td><td>{html.escape(sample['reference'])}</td>"
        f"<td>{_lines([f'· {response}' for response in sample['responses'][:RESPONSES_SHOWN]])}</td></tr>"
        for sample in dialog["samples"]
    )
    numbers = (
        f"{perplexities(dialog)} "
        f"Of {dialog['responses']:,} responses to {dialog['contexts']:,} contexts ({dialog['responses_from']}): "
        f"Dis-1 {dialog['distinct_1']:,}, Dis-2 {dialog['distinct_2']:,} ({dialog['distinct_of']}); of all their words "
        f"{dialog['distinct_1_ratio']:.4f}, of all pairs {dialog['distinct_2_ratio']:.4f} are distinct; "
        f"self-BLEU-2 {dialog['self_bleu_2']:.3f}, self-BLEU-3 {dialog['self_bleu_3']:.3f} ({dialog['self_bleu_of']}); "
        f"BLEU-2 with the true response {dialog['bleu_2_precision']:.3f} in the mean, {dialog['bleu_2_recall']:.3f} "
        f"for the best of each context."
    )
    heads = "<tr><th>context</th><th>what B said</th><th>what the model says</th></tr>"
    table = f'<table class="words">{heads}{rows}</table>'
    return f'<h3>Responses</h3>{table}<p class="quiet">{html.escape(numbers)}</p>'


def perplexities(numbers: Mapping[str, Any]) -> str:
    """Each that was measured, with what it is of: of responses, and of sentences alike."""
    kinds = [
        kind
        for kind in ("perplexity", "iwae_perplexity", "reconstruction_perplexity")
        if kind in numbers
    ]
    found = {
        kind: "too large" if numbers[kind] is None else f"{numbers[kind]:.2f}" for kind in kinds
    }
    return (
        "Perplexity "
        + "; ".join(f"{words} ({numbers[f'{kind}_of']})" for kind, words in found.items())
        + "."
    )


def _lines(words: Sequence[str]) -> str:
    return "<br>".join(map(html.escape, words))
