"""Metrics of a run over sentences: perplexities by name, and what it writes from the prior."""

from typing import Any

import torch

from controlvae.data.text import Sentences
from controlvae.metrics import distinct_n, perplexity, self_bleu
from controlvae.models import TextVAE
from controlvae.report.trained import Trained, prior_codes, some_examples

_WRITTEN = {"cuda": 1_000, "cpu": 200}  # sentences that diversity is measured on


def text_metrics(run: Trained, bound: dict[str, Any]) -> dict[str, Any]:
    """Of the examples that `bound` was measured on; nothing where they are no sentences."""
    if not isinstance(run.examples, Sentences):
        return {}
    chosen = some_examples(run, bound["examples"]).cpu()
    count, tokens = len(chosen), int(run.examples.lengths[chosen].sum())  # words and the ends of sentences
    written = write(run, _WRITTEN.get(run.device.type, 200))
    return {
        "text": {
            "tokens_per_sentence": tokens / count,
            "elbo_per_token": bound["elbo"] * count / tokens,
            "perplexity": perplexity(-bound["elbo"] * count, tokens),
            "perplexity_of": "the ELBO: an upper bound of the model's own",
            "reconstruction_perplexity": perplexity(bound["reconstruction"] * count, tokens),
            "reconstruction_perplexity_of": "sentences whose code is known: it falls as the KL rises",
            "written": len(written),
            "written_from": "N(0, I), temperature 1",
            "distinct_1": distinct_n(written, 1).ratio,
            "distinct_2": distinct_n(written, 2).ratio,
            "self_bleu_2": self_bleu(written, 2),
            "self_bleu_3": self_bleu(written, 3),
            "samples": written[:10],
        }
    }


@torch.no_grad()
def write(
    run: Trained, count: int, *, seed: int = 0, temperature: float = 1.0, top_p: float | None = None
) -> list[str]:
    """Sentences from the prior, a function of the seed."""
    assert isinstance(run.model, TextVAE)
    assert isinstance(run.examples, Sentences)
    longest = run.examples.shape[0]
    rows: list[str] = []
    for number, z in enumerate(prior_codes(run, count, seed).split(100)):
        made = run.model.generate(z, longest, temperature=temperature, top_p=top_p, seed=seed + 1_000 * number)
        rows += [run.examples.words(row) for row in made.tokens]
    return rows
