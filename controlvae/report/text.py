"""Metrics of a run over sentences: perplexities by name, and what it writes from the prior."""

from typing import Any

import torch
from torch import Tensor

from controlvae.data.text import Sentences
from controlvae.errors import UserError
from controlvae.metrics import distinct_n, perplexity, self_bleu
from controlvae.models import TextVAE
from controlvae.report.trained import Trained, prior_codes, some_examples

_TOGETHER = 100  # sentences written at once
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


def write(run: Trained, count: int, *, seed: int = 0, **how: Any) -> list[str]:
    """Sentences from the prior, a function of the seed; `how` is as in `TextVAE.generate`."""
    parts = prior_codes(run, count, seed).split(_TOGETHER)
    return [line for number, z in enumerate(parts) for line in _written(run, z, seed=seed + 1_000 * number, **how)]


@torch.no_grad()
def between(run: Trained, start: int, end: int, count: int = 10) -> list[str]:
    """Sentences on the straight line between the codes of two examples, the likeliest words each time.

    The first and the last are what the codes of the examples themselves are read back as.
    """
    first, last = run.model.encode(run.examples.batch(torch.tensor([start, end], device=run.device))).mean
    shares = torch.linspace(0, 1, count, device=run.device).unsqueeze(1)
    return _written(run, torch.lerp(first, last, shares), temperature=0.0)


def _written(run: Trained, z: Tensor, **how: Any) -> list[str]:
    assert isinstance(run.model, TextVAE)
    assert isinstance(run.examples, Sentences)
    try:
        made = run.model.generate(z, run.examples.shape[0], **how)
    except ValueError as error:
        raise UserError(str(error)) from None
    return [run.examples.words(row) for row in made.tokens]
