"""Metrics and generated sentences of a run over sentences."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from controlvae.errors import UserError
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.data.text.vocabulary import PAD
from controlvae.lab.evaluation.image_input import interpolation_endpoints
from controlvae.lab.evaluation.iwae import importance_weighted_bound
from controlvae.lab.models import TextVAE
from controlvae.lab.runs.loaded import LoadedRun, prior_codes, select_examples
from controlvae.metrics import distinct_n, perplexity, self_bleu

_BATCH = 50  # sentences generated at once
_STORED_RECONSTRUCTIONS = 8
_SAMPLED_SENTENCES = 1_000, 200  # for the measures of diversity, on a GPU and elsewhere


def text_metrics(run: LoadedRun, bound: dict[str, Any], samples: int) -> dict[str, Any]:
    """Measure perplexity, diversity and reconstruction of a run over sentences.

    Args:
        run: Trained run over the sentences to measure.
        bound: Its ELBO and the terms of it, from `elbo_metrics`.
        samples: Importance samples per example; 0 skips the IWAE bound.

    Returns:
        The entry `text` of metrics.json, and `iwae` unless it is skipped.
    """
    written = sample_sentences(run, run.example_budget(*_SAMPLED_SENTENCES))
    perplexities = bound_perplexities(run, bound, samples)
    perplexities["text"] |= {
        "reconstruction_perplexity": _perplexity(run, bound["reconstruction"], bound["examples"]),
        "reconstruction_perplexity_of": "sentences under a code that has read them: what the code "
        "tells is not charged, so it falls as the KL rises, and does not say how well text is "
        "predicted",
        **_paper_elbo(run, bound),
        "written": len(written),
        "written_from": "N(0, I), temperature 1",
        "distinct_1": distinct_n(written, 1).ratio,
        "distinct_2": distinct_n(written, 2).ratio,
        "self_bleu_2": self_bleu(written, 2),
        "self_bleu_3": self_bleu(written, 3),
        "samples": written[:10],
        "read_back": [
            pair._asdict() for pair in reconstruct_sentences(run, _STORED_RECONSTRUCTIONS)
        ],
    }
    return perplexities


def _paper_elbo(run: LoadedRun, bound: dict[str, Any]) -> dict[str, Any]:
    """Return what the paper's text program plots as the ELBO, if the run has logged a step."""
    records = run.folder.records()
    if not records:
        return {}
    beta = records[-1]["beta"]
    return {
        "paper_elbo": -(bound["reconstruction"] + beta * bound["kl"]),
        "paper_elbo_of": f"−(reconstruction + β·KL) with the last β, {beta:.3g}, plotted as the "
        "ELBO by the paper's program: what training maximises. A β below 1 flatters it, and it "
        "bounds nothing; the ELBO has β = 1",
    }


def bound_perplexities(run: LoadedRun, bound: dict[str, Any], samples: int) -> dict[str, Any]:
    """Return the perplexities that follow from the ELBO and from the IWAE bound.

    Args:
        run: Trained run over sentences or dialogs.
        bound: Its ELBO and the terms of it, from `elbo_metrics`.
        samples: Importance samples per example; 0 skips the IWAE bound.

    Returns:
        The perplexities under `text`, and the IWAE bound itself under `iwae`.
    """
    count, tokens = bound["examples"], count_tokens(run, bound["examples"])
    text = {
        "tokens_per_sentence": tokens / count,
        "elbo_per_token": bound["elbo"] * count / tokens,
        "perplexity": _perplexity(run, -bound["elbo"], count),
        "perplexity_of": f"the ELBO, per {_token_unit(run)}: an upper bound of the model's own",
    }
    if not samples:
        return {"text": text}
    tighter = importance_weighted_bound(run, samples, lambda share: None, most=count)
    iwae_perplexity, elbo_perplexity = (
        _perplexity(run, -tighter[name], tighter["examples"])
        for name in ("bound", "elbo_of_the_same")
    )
    text |= {
        "iwae_perplexity": iwae_perplexity,
        "iwae_perplexity_of": f"IWAE-{samples}, a closer upper bound, of {tighter['examples']:,} "
        f"of the examples; of the same ones the ELBO's is {elbo_perplexity:.2f}",
    }
    return {"iwae": tighter, "text": text}


def _token_unit(run: LoadedRun) -> str:
    """Return the unit of the perplexity. Values per word and per subword are not comparable."""
    is_subword = getattr(run.experiment.data, "pieces", None)
    return "piece of a word or end" if is_subword else "word or end"


def count_tokens(run: LoadedRun, count: int) -> int:
    """Return the number of tokens, including ends, in the first `count` measured sentences.

    For dialogs only the responses count.
    """
    assert isinstance(run.examples, SentenceDataset | DialogDataset)
    lengths = run.examples.lengths[select_examples(run, count).cpu()]
    return int(lengths.reshape(len(lengths), -1)[:, -1].sum())


def _perplexity(run: LoadedRun, nats: float, count: int) -> float:
    return perplexity(nats * count, count_tokens(run, count))


def sample_sentences(run: LoadedRun, count: int, *, seed: int = 0, **options: Any) -> list[str]:
    """Generate sentences from codes of the prior.

    Args:
        run: Trained run over sentences.
        count: Number of sentences. The first ones do not depend on it.
        seed: Seed of codes and words.
        **options: Options of `TextVAE.generate`, such as `temperature` or `beam`.
    """
    # Words are drawn row by row, so a shorter last batch would draw other words.
    is_random = options.get("beam") is None and options.get("temperature") != 0
    padded = count + -count % _BATCH if is_random else count
    batches = prior_codes(run, padded, seed).split(_BATCH)
    keys = (stream_key(seed, number) for number in range(len(batches)))
    lines = [
        line
        for z, key in zip(batches, keys, strict=True)
        for line in _generate(run, z, seed=key, **options)
    ]
    return lines[:count]


class SentenceReconstruction(NamedTuple):
    """A sentence and its reconstruction."""

    sentence: str
    read_back: str


@torch.no_grad()
def reconstruct_sentences(run: LoadedRun, count: int) -> list[SentenceReconstruction]:
    """Reconstruct examples from their posterior means by the likeliest words.

    All reconstructions are equal if the decoder ignores the code.
    """
    assert isinstance(run.vae, TextVAE)
    assert isinstance(run.examples, SentenceDataset)
    x = run.examples.batch(select_examples(run, count))
    lines = _generate(run, run.vae.encode(x).mean, temperature=0.0)
    return [
        SentenceReconstruction(run.examples.to_text(row), line)
        for row, line in zip(x, lines, strict=True)
    ]


class SentencePair(NamedTuple):
    """Two sentences to interpolate between."""

    rows: Tensor  # tokens, (2, length)
    unknown: list[str]  # words outside the model's vocabulary


def resolve_sentences(run: LoadedRun, start: str | None, end: str | None) -> SentencePair:
    """Return the end points of an interpolation.

    Args:
        run: Trained run over sentences.
        start: A sentence, the index of an example, or None for a fixed random example.
        end: The same for the other end.
    """
    assert isinstance(run.examples, SentenceDataset)
    inputs = (start, end)
    indices = [int(one) if one is not None and _is_integer(one) else None for one in inputs]
    sentences = [one if i is None else None for one, i in zip(inputs, indices, strict=True)]
    resolved = interpolation_endpoints(run, *indices) if None in sentences else (0, 0)
    if any(one is not None and not one.split() for one in sentences):
        raise UserError(
            "--from and --to take a sentence or the index of an example, got an empty string"
        )
    rows = [
        run.examples.tokens[index].long().cpu() if one is None else run.examples.encode(one)
        for index, one in zip(resolved, sentences, strict=True)
    ]
    unknown = run.examples.unknown_words(" ".join(one for one in sentences if one is not None))
    padded = pad_sequence(rows, batch_first=True, padding_value=PAD)
    return SentencePair(padded.to(run.device), unknown)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


@torch.no_grad()
def interpolate_sentences(run: LoadedRun, ends: Tensor, count: int = 10) -> list[str]:
    """Decode codes on the straight line between the codes of two sentences.

    Args:
        run: Trained run over sentences.
        ends: Tokens of the two sentences, (2, length).
        count: Number of sentences, including the reconstructions of both ends.
    """
    assert isinstance(run.vae, TextVAE)
    first, last = run.vae.encode(ends).mean
    shares = torch.linspace(0, 1, count, device=run.device).unsqueeze(1)
    return _generate(run, torch.lerp(first, last, shares), temperature=0.0)


def _generate(run: LoadedRun, z: Tensor, **options: Any) -> list[str]:
    assert isinstance(run.vae, TextVAE)
    assert isinstance(run.examples, SentenceDataset)
    try:
        generated = run.vae.generate(z, run.shape[0], **options)
    except ValueError as error:
        raise UserError(str(error)) from None
    return [run.examples.to_text(row) for row in generated.tokens]
