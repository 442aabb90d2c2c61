"""Words as numbers: the four that stand for no word, then the words of the training text, the most frequent first."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError

PAD, BOS, EOS, UNK = range(
    4
)  # padding, begin of sentence, end of sentence, a word outside the vocabulary
SPECIAL = (
    "<PAD>",
    "<BOS>",
    "<EOS>",
    "<UNK>",
)  # distinct from Penn Treebank's own <unk>, which is a word like others
_MOST = 4 << 30  # bytes of one table


class Numbers(NamedTuple):
    """Sentences as numbers."""

    tokens: np.ndarray  # (count, longest) int32: words, EOS, then PAD
    lengths: np.ndarray  # (count,) int64: words and EOS
    unknown: int  # words that became UNK

    def note(self, words: tuple[str, ...]) -> str:
        """How many are outside the vocabulary, to be said beside where they come from; nothing where none are."""
        if not self.unknown:
            return ""
        share = self.unknown / int((self.tokens != PAD).sum() - len(self.tokens))
        them = "word" if self.unknown == 1 else "words"
        return f"; {self.unknown:,} {them} ({share:.1%}) outside the vocabulary of {len(words):,}"


def vocabulary(sentences: Iterable[Sequence[str]], words: int | None = None) -> tuple[str, ...]:
    """`SPECIAL`, then the words, the most frequent first and alphabetically among equals; at most `words` of them."""
    if words is not None and words < 1:
        raise UserError(f"words must be 1 or more, got {words}")
    counts = Counter(word for sentence in sentences for word in sentence)
    counts.pop(SPECIAL[UNK], None)  # already among the four
    for name in SPECIAL[:UNK]:
        if name in counts:
            raise UserError(
                f"the text contains the word {name}, which has a meaning of its own here; spell it otherwise"
            )
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return SPECIAL + tuple(ranked[:words])


def to_numbers(sentences: Sequence[Sequence[str]], words: tuple[str, ...]) -> Numbers:
    """Every sentence whole, as long as the longest."""
    # A name of a marker is a word like any other that is not known: text may be held out that nobody looked through.
    number = {word: index for index, word in enumerate(words) if index >= len(SPECIAL)}
    lengths = np.array([len(sentence) + 1 for sentence in sentences], np.int64)
    longest = int(lengths.max(initial=1))
    if len(sentences) * longest * 4 > _MOST:
        raise UserError(
            f"{len(sentences):,} sentences as long as the longest, of {longest - 1:,} words, take "
            f"{len(sentences) * longest * 4 / (1 << 30):.0f} GB; set the longest sentence to take"
        )
    flat = np.fromiter(
        (number.get(word, UNK) for sentence in sentences for word in sentence), np.int32
    )
    place = np.arange(longest)
    tokens = np.full((len(sentences), longest), PAD, np.int32)
    tokens[place < lengths[:, None] - 1] = flat
    tokens[place == lengths[:, None] - 1] = EOS
    return Numbers(tokens, lengths, int((flat == UNK).sum()))


def to_words(row: Iterable[int], words: tuple[str, ...]) -> str:
    """The sentence up to its end, as text."""
    found = []
    for token in row:
        if token in (EOS, PAD):
            break
        found.append(words[token])
    return " ".join(found)
