"""Metrics of a run over sentences: perplexities by name, what it writes from the prior and what its codes keep."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from controlvae.errors import UserError
from controlvae.lab.data.dataset import stream_key
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.data.text.vocabulary import PAD
from controlvae.lab.evaluation.image_input import endpoints
from controlvae.lab.evaluation.iwae import importance_weighted
from controlvae.lab.models import TextVAE
from controlvae.lab.runs.loaded import LoadedRun, prior_codes, some_examples
from controlvae.metrics import distinct_n, perplexity, self_bleu

_TOGETHER = 50  # sentences written at once
_SHOWN = 8  # sentences kept with what their codes are read back as
_WRITTEN = 1_000, 200  # sentences that diversity is measured on, on a GPU and elsewhere


def text_metrics(run: LoadedRun, bound: dict[str, Any], samples: int) -> dict[str, Any]:
    """Of the examples that `bound` was measured on; nothing where they are no sentences.

    Args:
        run: a trained run.
        bound: its ELBO and the like.
        samples: importance samples per example; 0 leaves that bound out.
    """
    if not isinstance(run.examples, SentenceDataset):
        return {}
    written = write(run, run.affords(*_WRITTEN))
    perplexities = bound_perplexities(run, bound, samples)
    perplexities["text"] |= {
        "reconstruction_perplexity": _perplexity(run, bound["reconstruction"], bound["examples"]),
        "reconstruction_perplexity_of": "sentences under a code that has read them: what the code tells is not "
        "charged, so it falls as the KL rises, and does not say how well text is predicted",
        **_paper_curve(run, bound),
        "written": len(written),
        "written_from": "N(0, I), temperature 1",
        "distinct_1": distinct_n(written, 1).ratio,
        "distinct_2": distinct_n(written, 2).ratio,
        "self_bleu_2": self_bleu(written, 2),
        "self_bleu_3": self_bleu(written, 3),
        "samples": written[:10],
        "read_back": [pair._asdict() for pair in read_back(run, _SHOWN)],
    }
    return perplexities


def _paper_curve(run: LoadedRun, bound: dict[str, Any]) -> dict[str, Any]:
    """What the released text program plots as the ELBO, of the same examples; nothing before the first log line."""
    records = run.folder.records()
    if not records:
        return {}
    beta = records[-1]["beta"]
    return {
        "paper_elbo": -(bound["reconstruction"] + beta * bound["kl"]),
        "paper_elbo_of": f"−(reconstruction + β·KL) with the last β, {beta:.3g}, plotted as the ELBO by the paper's "
        "program: what training maximises. A β below 1 flatters it, and it bounds nothing; the ELBO has β = 1",
    }


def bound_perplexities(run: LoadedRun, bound: dict[str, Any], samples: int) -> dict[str, Any]:
    """What the bounds make of a token, under `text`; with the importance-weighted bound itself, under `iwae`."""
    count, tokens = bound["examples"], tokens_of(run, bound["examples"])
    text = {
        "tokens_per_sentence": tokens / count,
        "elbo_per_token": bound["elbo"] * count / tokens,
        "perplexity": _perplexity(run, -bound["elbo"], count),
        "perplexity_of": f"the ELBO, per {_unit(run)}: an upper bound of the model's own",
    }
    if not samples:
        return {"text": text}
    tighter = importance_weighted(run, samples, lambda share: None, most=count)
    bounded, looser = (
        _perplexity(run, -tighter[name], tighter["examples"])
        for name in ("bound", "elbo_of_the_same")
    )
    text |= {
        "iwae_perplexity": bounded,
        "iwae_perplexity_of": f"IWAE-{samples}, a closer upper bound, of {tighter['examples']:,} of the examples; of "
        f"the same ones the ELBO's is {looser:.2f}",
    }
    return {"iwae": tighter, "text": text}


def _unit(run: LoadedRun) -> str:
    """What a perplexity is of one of. That of a piece is lower than that of a word, and neither tells of the other."""
    return (
        "piece of a word or end" if getattr(run.experiment.data, "pieces", None) else "word or end"
    )


def tokens_of(run: LoadedRun, count: int) -> int:
    """Words and ends of the sentences, or of the responses, among the first `count` that are measured."""
    assert isinstance(run.examples, SentenceDataset | DialogDataset)
    lengths = run.examples.lengths[some_examples(run, count).cpu()]
    return int(lengths.reshape(len(lengths), -1)[:, -1].sum())


def _perplexity(run: LoadedRun, nats: float, count: int) -> float:
    return perplexity(nats * count, tokens_of(run, count))


def write(run: LoadedRun, count: int, *, seed: int = 0, **how: Any) -> list[str]:
    """Sentences from the prior: the first of a seed are the same for any count. `how` is as in `TextVAE.generate`."""
    drawn = how.get("beam") is None and how.get("temperature") != 0
    whole = (
        count + -count % _TOGETHER if drawn else count
    )  # words are drawn row by row: a short batch draws others
    parts = prior_codes(run, whole, seed).split(_TOGETHER)
    keys = (stream_key(seed, number) for number in range(len(parts)))
    return [
        line
        for z, key in zip(parts, keys, strict=True)
        for line in _written(run, z, seed=key, **how)
    ][:count]


class ReadBack(NamedTuple):
    """A sentence, and what the decoder makes of its code."""

    sentence: str
    read_back: str


@torch.no_grad()
def read_back(run: LoadedRun, count: int) -> list[ReadBack]:
    """Examples beside the likeliest words given their codes (posterior means): all alike where the code is not used."""
    assert isinstance(run.model, TextVAE)
    assert isinstance(run.examples, SentenceDataset)
    x = run.examples.batch(some_examples(run, count))
    lines = _written(run, run.model.encode(x).mean, temperature=0.0)
    return [ReadBack(run.examples.words(row), line) for row, line in zip(x, lines, strict=True)]


class Ends(NamedTuple):
    """Two sentences to go between."""

    rows: Tensor  # of tokens, (2, T)
    unknown: list[str]  # words of one's own that the model does not know


def two_sentences(run: LoadedRun, start: str | None, end: str | None) -> Ends:
    """Each in words, or by the index of an example, or a fixed random choice."""
    assert isinstance(run.examples, SentenceDataset)
    given = (start, end)
    numbers = [
        int(one) if one is not None and one.removeprefix("-").isdecimal() else None for one in given
    ]
    own = [one if number is None else None for one, number in zip(given, numbers, strict=True)]
    indices = endpoints(run, *numbers) if None in own else (0, 0)
    if any(one is not None and not one.split() for one in own):
        raise UserError("--from and --to take a sentence or the index of an example, got neither")
    rows = [
        run.examples.tokens[index].long().cpu() if one is None else run.examples.row(one)
        for index, one in zip(indices, own, strict=True)
    ]
    unknown = run.examples.unknown(" ".join(one for one in own if one is not None))
    return Ends(pad_sequence(rows, batch_first=True, padding_value=PAD).to(run.device), unknown)


@torch.no_grad()
def between(run: LoadedRun, ends: Tensor, count: int = 10) -> list[str]:
    """Sentences on the straight line between the codes of two, (2, T), the likeliest words each time.

    The first and the last are what the codes of the two themselves are read back as.
    """
    assert isinstance(run.model, TextVAE)
    first, last = run.model.encode(ends).mean
    shares = torch.linspace(0, 1, count, device=run.device).unsqueeze(1)
    return _written(run, torch.lerp(first, last, shares), temperature=0.0)


def _written(run: LoadedRun, z: Tensor, **how: Any) -> list[str]:
    assert isinstance(run.model, TextVAE)
    assert isinstance(run.examples, SentenceDataset)
    try:
        made = run.model.generate(z, run.shape[0], **how)
    except ValueError as error:
        raise UserError(str(error)) from None
    return [run.examples.words(row) for row in made.tokens]
