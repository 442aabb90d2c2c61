"""Metrics of a run over dialogs: perplexities by name, and how varied and how near the truth its responses are."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.dataset import stream_key
from controlvae.lab.data.text.dialogs import DialogDataset, Exchanges
from controlvae.lab.data.text.vocabulary import SPECIAL, UNK
from controlvae.lab.evaluation.text import bound_perplexities
from controlvae.lab.models import DialogVAE
from controlvae.lab.models.reconstruction import words_nll
from controlvae.lab.runs.loaded import LoadedRun, some_examples
from controlvae.metrics import bleu, distinct_n, perplexity, self_bleu

PAPER_PERPLEXITY = (
    "words under a code of the posterior, which has read them: the paper's PPL. What the code tells of the words is "
    "not charged, so it falls as the KL rises, and does not say how well responses are predicted from their contexts; "
    "the other perplexities charge it"
)
_WITH_ACT = "the ELBO, which pays for the act of the response as well as its words: an upper bound of the model's own"
_EACH = 10  # responses to a context, as in the paper
_CONTEXTS = (
    1_000_000,
    100,
)  # that responses are written to, on a GPU all, as in the paper, and elsewhere
_BLEU_SAMPLE = 1_000
_BATCH, _PAPER_BATCH = 100, 30
_SHOWN = 8  # contexts kept with their responses


class Answered(NamedTuple):
    """Contexts with what was said there and what the model says."""

    references: list[str]
    responses: list[list[str]]  # several for each context
    contexts: list[list[str]]  # utterances, each after the letter of its speaker: B responds
    topics: list[str]


def dialog_metrics(run: LoadedRun, bound: dict[str, Any], samples: int) -> dict[str, Any]:
    """Of the examples that `bound` was measured on; nothing where they are no dialogs. `samples` as in text."""
    if not isinstance(run.examples, DialogDataset):
        return {}
    perplexities, nats, tokens = (
        bound_perplexities(run, bound, samples),
        *_words(run, bound["examples"]),
    )
    batches = [perplexity(*pair) for pair in zip(_grouped(nats), _grouped(tokens), strict=True)]
    text = {
        **perplexities.pop("text"),
        **({"perplexity_of": _WITH_ACT} if _pays_for_acts(run) else {}),
        "reconstruction_perplexity": perplexity(nats, tokens),
        "reconstruction_perplexity_of": PAPER_PERPLEXITY,
        "paper_perplexity": float(np.mean(batches)),
        "paper_perplexity_of": f"the same, as the released code averages it: over batches of {_PAPER_BATCH}",
    }
    return {**perplexities, "dialog": text | _of_responses(answer(run, run.affords(*_CONTEXTS)))}


def _pays_for_acts(run: LoadedRun) -> bool:
    """Whether the model guesses acts, and the data has any."""
    assert isinstance(run.model, DialogVAE)
    assert isinstance(run.examples, DialogDataset)
    return run.model.acts is not None and len(run.examples.names.acts) > 1


def _of_responses(found: Answered) -> dict[str, Any]:
    """How varied they are, and how near to what was really said."""
    flat = [response for several in found.responses for response in several]
    known = [
        response.replace(SPECIAL[UNK], "").split() for response in flat
    ]  # as the paper's self-BLEU takes them
    sample = min(_BLEU_SAMPLE, len(flat))
    return {
        "contexts": len(found.responses),
        "responses": len(flat),
        "responses_from": f"{_EACH} codes of the prior for each context, the likeliest words of each",
        "distinct_1": distinct_n(flat, 1, across=True).number,
        "distinct_2": distinct_n(flat, 2, across=True).number,
        "distinct_of": "responses end to end, as in the paper: counts, which grow with the number of responses",
        "distinct_1_ratio": distinct_n(flat, 1).ratio,
        "distinct_2_ratio": distinct_n(flat, 2).ratio,
        "distinct_1_per_response": _mean_ratio(flat, 1),
        "distinct_2_per_response": _mean_ratio(flat, 2),
        "self_bleu_2": self_bleu(known, 2, sample),
        "self_bleu_3": self_bleu(known, 3, sample),
        "self_bleu_of": f"{sample:,} responses at random, NLTK's smoothing method 1",
        **_against_references(found),
        "samples": [
            {"topic": topic, "context": context, "reference": reference, "responses": responses}
            for topic, context, reference, responses in zip(
                found.topics[:_SHOWN],
                found.contexts,
                found.references,
                found.responses,
                strict=False,
            )
        ],
    }


def _mean_ratio(sentences: list[str], n: int) -> float:
    """Distinct n-grams of each sentence over its own, averaged over those long enough to have one."""
    each = [distinct_n([sentence], n) for sentence in sentences]
    return float(np.mean([found.ratio for found in each if found.total] or [0.0]))


def _against_references(found: Answered) -> dict[str, Any]:
    """BLEU with the true response: of all that were written (precision), of the best for each context (recall)."""
    scores: dict[str, Any] = {}
    for n in (1, 2, 3):
        table = np.array(
            [
                bleu(several, [[reference]] * len(several), n)
                for several, reference in zip(found.responses, found.references, strict=True)
            ]
        )
        scores |= {
            f"bleu_{n}_precision": float(table.mean()),
            f"bleu_{n}_recall": float(table.max(1).mean()),
        }
    return scores


@torch.no_grad()
def _words(run: LoadedRun, count: int) -> tuple[np.ndarray, np.ndarray]:
    """-log p of each response's words with a code of the posterior, and their number: twice (count,)."""
    assert isinstance(run.model, DialogVAE)
    assert isinstance(run.examples, DialogDataset)
    noise, nats = torch.Generator().manual_seed(stream_key(0, 19)), []
    chosen = some_examples(run, count)
    for few in chosen.split(_BATCH):
        x = run.examples.batch(few)
        posterior = run.model.encode(x)
        z = posterior.sample(torch.randn(posterior.mean.shape, generator=noise).to(run.device))
        nats.append(words_nll(run.model, z, x, posterior.given).cpu().double())
    return torch.cat(nats).numpy(), run.examples.lengths[chosen.cpu(), 1].numpy()


def _grouped(values: np.ndarray) -> list[np.ndarray]:
    return [values[start : start + _PAPER_BATCH] for start in range(0, len(values), _PAPER_BATCH)]


@torch.no_grad()
def answer(run: LoadedRun, contexts: int, each: int = _EACH, *, seed: int = 0) -> Answered:
    """Responses to contexts of the examples, a fixed random choice of them."""
    examples = run.examples
    assert isinstance(examples, DialogDataset)
    found = Answered([], [], [], [])
    for number, few in enumerate(some_examples(run, contexts).split(_BATCH)):
        x = examples.batch(few)
        found.responses.extend(respond(run, x, each, seed=stream_key(seed, number)))
        found.references.extend(examples.words(row) for row in x.response)
        found.topics.extend(examples.names.topics[topic] for topic in x.topic.tolist())
        for rows, floors in zip(x.context, x.floors.tolist(), strict=True):
            spoken = [examples.words(row) for row in rows if row[0]]
            found.contexts.append(
                [f"{'AB'[floor]}: {words}" for floor, words in zip(floors, spoken, strict=False)]
            )
    return found


@torch.no_grad()
def respond(
    run: LoadedRun, x: Exchanges, count: int, *, seed: int = 0, temperature: float = 0.0, **how: Any
) -> list[list[str]]:
    """So many responses to each context, each from a code of its prior, the likeliest words as in the paper."""
    assert isinstance(run.model, DialogVAE)
    assert isinstance(run.examples, DialogDataset)
    given = run.model.read(x)
    prior = run.model.before(given)
    noise = torch.randn(count, *prior.mean.shape, generator=torch.Generator().manual_seed(seed)).to(
        run.device
    )
    z: Tensor = prior.sample(noise).transpose(0, 1).flatten(0, 1)
    longest = run.shape[1]
    try:
        written = run.model.respond(
            z, given.repeat_interleave(count, 0), longest, temperature=temperature, seed=seed, **how
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    rows = [run.examples.words(row) for row in written.tokens]
    return [rows[start : start + count] for start in range(0, len(rows), count)]
