"""Corpus BLEU as papers report it, computed by sacrebleu."""

from collections.abc import Sequence
from typing import NamedTuple

from controlvae.metrics._packages import require
from controlvae.metrics.text import Sentence, as_words


class CorpusBLEU(NamedTuple):
    """Score in [0, 100], and sacrebleu's signature, which papers quote."""

    score: float
    precisions: tuple[float, ...]  # of 1-grams to 4-grams, percent
    signature: str


def corpus_bleu(
    sentences: Sequence[Sentence],
    references: Sequence[Sequence[Sentence]],
    *,
    tokenize: str = "none",
) -> CorpusBLEU:
    r"""Compute BLEU-4 over a whole corpus.

    .. math:: 100 \, e^{\min(0, 1 - r/c)} \Big(\prod_{n=1}^4 p_n\Big)^{1/4}

    Counts and lengths are summed over the corpus before they are divided, so it is not the mean of
    the sentences' `bleu` (Papineni et al., *BLEU: a method for automatic evaluation of machine
    translation*, 2002; Post, *A call for clarity in reporting BLEU scores*, 2018). Needs
    `sacrebleu`.

    Args:
        sentences: Strings, or lists of tokens, which are joined by spaces.
        references: One or more references for each sentence; equally many for all.
        tokenize: Tokeniser of sacrebleu. `none` splits at white space, for text that is tokenised;
            `13a` is the usual one for plain text.

    Returns:
        The score, the precisions and the signature.

    >>> round(corpus_bleu(["the cat sat on the mat"], [["the cat sat on a mat"]]).score, 2)
    53.73
    """
    sacrebleu = require("corpus BLEU", "sacrebleu", "sacrebleu")
    written = [_join(text) for text in as_words(sentences)]
    known = [[_join(text) for text in as_words(own)] for own in references]
    counts = {len(own) for own in known}
    if len(written) != len(known) or len(counts) != 1 or 0 in counts:
        raise ValueError(
            "every sentence needs equally many references, at least one, got "
            f"{len(written)} sentences and {len(known)} lists of {sorted(counts)} references"
        )
    try:
        metric = sacrebleu.metrics.BLEU(tokenize=tokenize)
    except KeyError:
        raise ValueError(f"sacrebleu has no tokeniser {tokenize!r}") from None
    result = metric.corpus_score(written, [list(column) for column in zip(*known, strict=True)])
    signature = str(metric.get_signature())
    return CorpusBLEU(float(result.score), tuple(result.precisions), signature)


def _join(words: Sequence[object]) -> str:
    return " ".join(map(str, words))
