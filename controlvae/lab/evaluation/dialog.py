"""Metrics and generated responses of a run over dialogs."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.text.dialogs import DialogBatch, DialogDataset
from controlvae.lab.data.text.vocabulary import SPECIAL_TOKENS, UNK
from controlvae.lab.evaluation.text import bound_perplexities
from controlvae.lab.models import DialogVAE
from controlvae.lab.models.reconstruction import words_nll
from controlvae.lab.runs.loaded import (
    LoadedRun,
    on_published_validation,
    require_examples,
    select_examples,
)
from controlvae.metrics import bleu, distinct_n, perplexity, self_bleu

PAPER_PERPLEXITY = (
    "words under a code of the posterior, which has read them: the paper's PPL. What the code "
    "tells of the words is not charged, so it falls as the KL rises, and does not say how well "
    "responses are predicted from their contexts; the other perplexities charge it"
)
_ELBO_WITH_ACT = (
    "the ELBO, which pays for the act of the response as well as its words: "
    "an upper bound of the model's own"
)
_RESPONSES_PER_CONTEXT = 10  # as in the paper
_CONTEXTS = 1_000_000, 100  # on a GPU, all as in the paper, and elsewhere
_BLEU_SAMPLE = 1_000
_PAPER_BLEU_CONTEXTS = 100
_BATCH, _PAPER_BATCH = 100, 30
_STORED_CONTEXTS = 8


class DialogResponses(NamedTuple):
    """Contexts, their true responses and the model's responses."""

    references: list[str]
    responses: list[list[str]]  # several for each context
    contexts: list[list[str]]  # utterances, each prefixed by its speaker; B responds
    topics: list[str]


def dialog_metrics(run: LoadedRun, bound: dict[str, Any], samples: int) -> dict[str, Any]:
    """Measure perplexity of a run over dialogs, and diversity and BLEU of its responses.

    Args:
        run: Trained run over the dialogs to measure.
        bound: Its ELBO and the terms of it, from `elbo_metrics`.
        samples: Importance samples per example; 0 skips the IWAE bound.

    Returns:
        The entry `dialog` of metrics.json, and `iwae` unless it is skipped.
    """
    perplexities = bound_perplexities(run, bound, samples)
    nats, tokens = _response_nll(run, bound["examples"])
    text = {
        **perplexities.pop("text"),
        **({"perplexity_of": _ELBO_WITH_ACT} if _predicts_acts(run) else {}),
        "reconstruction_perplexity": perplexity(nats, tokens),
        "reconstruction_perplexity_of": PAPER_PERPLEXITY,
        "paper_perplexity": _mean_of_batches(nats, tokens),
        "paper_perplexity_of": "the same, as the released code averages it: over batches of "
        f"{_PAPER_BATCH}",
        **_validation_perplexity(run, bound["examples"]),
    }
    generated = generate_responses(run, run.example_budget(*_CONTEXTS))
    responses = _response_metrics(generated) | _paper_self_bleu(run)
    return {**perplexities, "dialog": text | responses}


def _validation_perplexity(run: LoadedRun, count: int) -> dict[str, Any]:
    """Return the paper's perplexity on the split where the paper measured it, if it is at hand."""
    try:
        validation = on_published_validation(run)
    except UserError as error:
        return {"validation_perplexity_of": f"not measured: {error}"}
    if validation is None:
        return {}
    nats, tokens = _response_nll(validation, count)
    return {
        "validation_perplexity": _mean_of_batches(nats, tokens),
        "validation_perplexity_of": f"the same, on {len(nats):,} responses of the validation "
        "split, where the paper measured it",
    }


def _paper_self_bleu(run: LoadedRun) -> dict[str, Any]:
    """Return self-BLEU of the responses that the released code takes: to the first contexts."""
    require_examples(run)
    available = torch.arange(len(run.examples)) if run.among is None else run.among
    first = available[:_PAPER_BLEU_CONTEXTS].to(run.device)
    generated = generate_responses(run, first)
    known = _known_words([response for several in generated.responses for response in several])
    return {
        "paper_self_bleu_2": self_bleu(known, 2, len(known)),
        "paper_self_bleu_3": self_bleu(known, 3, len(known)),
        "paper_self_bleu_of": f"all {len(known):,} responses to the first {len(first)} contexts "
        "of the file, as the released code takes them",
    }


def _known_words(responses: list[str]) -> list[list[str]]:
    """Return the words of each response without unknown ones, as the paper's self-BLEU does."""
    return [response.replace(SPECIAL_TOKENS[UNK], "").split() for response in responses]


def _predicts_acts(run: LoadedRun) -> bool:
    """Return whether the model predicts dialog acts and the data has more than one."""
    assert isinstance(run.vae, DialogVAE)
    assert isinstance(run.examples, DialogDataset)
    return run.vae.acts is not None and len(run.examples.names.acts) > 1


def _response_metrics(generated: DialogResponses) -> dict[str, Any]:
    """Measure the diversity of responses, and their similarity to the true ones."""
    flat = [response for several in generated.responses for response in several]
    known = _known_words(flat)
    sample = min(_BLEU_SAMPLE, len(flat))
    return {
        "contexts": len(generated.responses),
        "responses": len(flat),
        "responses_from": f"{_RESPONSES_PER_CONTEXT} codes of the prior for each context, the "
        "likeliest words of each",
        "distinct_1": distinct_n(flat, 1, across=True).number,
        "distinct_2": distinct_n(flat, 2, across=True).number,
        "distinct_of": "responses end to end, as in the paper: counts, which grow with the number "
        "of responses",
        "distinct_1_ratio": distinct_n(flat, 1).ratio,
        "distinct_2_ratio": distinct_n(flat, 2).ratio,
        "distinct_1_per_response": _mean_ratio(flat, 1),
        "distinct_2_per_response": _mean_ratio(flat, 2),
        "self_bleu_2": self_bleu(known, 2, sample),
        "self_bleu_3": self_bleu(known, 3, sample),
        "self_bleu_of": f"{sample:,} responses at random, NLTK's smoothing method 1",
        **_bleu_scores(generated),
        "samples": [
            {"topic": topic, "context": context, "reference": reference, "responses": responses}
            for topic, context, reference, responses in zip(
                generated.topics[:_STORED_CONTEXTS],
                generated.contexts,
                generated.references,
                generated.responses,
                strict=False,
            )
        ],
    }


def _mean_ratio(sentences: list[str], n: int) -> float:
    """Return the mean ratio of distinct n-grams, over sentences of at least n words."""
    counts = [distinct_n([sentence], n) for sentence in sentences]
    return float(np.mean([count.ratio for count in counts if count.total] or [0.0]))


def _bleu_scores(generated: DialogResponses) -> dict[str, Any]:
    """Return BLEU against the true responses.

    Precision is the mean over all responses, recall the mean over the best one per context.
    """
    scores: dict[str, Any] = {}
    for n in (1, 2, 3):
        table = np.array(
            [
                bleu(several, [[reference]] * len(several), n)
                for several, reference in zip(
                    generated.responses, generated.references, strict=True
                )
            ]
        )
        scores |= {
            f"bleu_{n}_precision": float(table.mean()),
            f"bleu_{n}_recall": float(table.max(1).mean()),
        }
    return scores


@torch.no_grad()
def _response_nll(run: LoadedRun, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return -log p(words | z) of each response, z from the posterior, and its token count."""
    assert isinstance(run.vae, DialogVAE)
    assert isinstance(run.examples, DialogDataset)
    noise, nats = torch.Generator().manual_seed(stream_key(0, 19)), []
    chosen = select_examples(run, count)
    for few in chosen.split(_BATCH):
        x = run.examples.batch(few)
        posterior = run.vae.encode(x)
        z = posterior.sample(torch.randn(posterior.mean.shape, generator=noise).to(run.device))
        nats.append(words_nll(run.vae, z, x, posterior.context).cpu().double())
    return torch.cat(nats).numpy(), run.examples.lengths[chosen.cpu(), 1].numpy()


def _mean_of_batches(nats: np.ndarray, tokens: np.ndarray) -> float:
    """Return the mean perplexity over batches of the paper's size."""
    starts = range(0, len(nats), _PAPER_BATCH)
    batches = [slice(start, start + _PAPER_BATCH) for start in starts]
    return float(np.mean([perplexity(nats[part], tokens[part]) for part in batches]))


@torch.no_grad()
def generate_responses(
    run: LoadedRun, contexts: int | Tensor, each: int = _RESPONSES_PER_CONTEXT, *, seed: int = 0
) -> DialogResponses:
    """Generate responses to contexts.

    Args:
        run: Trained run over dialogs.
        contexts: Number of contexts, a fixed random choice, or indices (n,) on the run's device.
        each: Responses per context.
        seed: Seed of the codes.
    """
    examples = run.examples
    assert isinstance(examples, DialogDataset)
    generated = DialogResponses([], [], [], [])
    chosen = select_examples(run, contexts) if isinstance(contexts, int) else contexts
    for number, few in enumerate(chosen.split(_BATCH)):
        x = examples.batch(few)
        generated.responses.extend(respond(run, x, each, seed=stream_key(seed, number)))
        generated.references.extend(examples.to_text(row) for row in x.response)
        generated.topics.extend(examples.names.topics[topic] for topic in x.topic.tolist())
        for rows, floors in zip(x.context, x.floors.tolist(), strict=True):
            spoken = [examples.to_text(row) for row in rows if row[0]]
            generated.contexts.append(
                [f"{'AB'[floor]}: {words}" for floor, words in zip(floors, spoken, strict=False)]
            )
    return generated


@torch.no_grad()
def respond(
    run: LoadedRun,
    x: DialogBatch,
    count: int,
    *,
    seed: int = 0,
    temperature: float = 0.0,
    **options: Any,
) -> list[list[str]]:
    """Generate responses to each context, each from a code of the prior of that context.

    Args:
        run: Trained run over dialogs.
        x: Contexts.
        count: Responses per context.
        seed: Seed of codes and words.
        temperature: Sampling temperature; 0 takes the likeliest words, as in the paper.
        **options: Further options of `DialogVAE.respond`.
    """
    assert isinstance(run.vae, DialogVAE)
    assert isinstance(run.examples, DialogDataset)
    given = run.vae.encode_context(x)
    prior = run.vae.compute_prior(given)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, *prior.mean.shape, generator=generator).to(run.device)
    z: Tensor = prior.sample(noise).transpose(0, 1).flatten(0, 1)
    longest = run.shape[1]
    try:
        written = run.vae.respond(
            z,
            given.repeat_interleave(count, 0),
            longest,
            temperature=temperature,
            seed=seed,
            **options,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    rows = [run.examples.to_text(row) for row in written.tokens]
    return [rows[start : start + count] for start in range(0, len(rows), count)]
