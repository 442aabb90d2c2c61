"""Vocabularies: four special tokens, then the words of the training text by frequency."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError

PAD, BOS, EOS, UNK = range(4)  # padding, begin and end of a sentence, a word not in the vocabulary
# Distinct from Penn Treebank's own <unk>, which is a word like others.
SPECIAL_TOKENS = ("<PAD>", "<BOS>", "<EOS>", "<UNK>")
_MAX_TABLE_BYTES = 4 << 30


class TokenTable(NamedTuple):
    """Sentences as rows of token ids."""

    tokens: np.ndarray  # (count, longest) int32: words, EOS, then PAD
    lengths: np.ndarray  # (count,) int64: words and EOS
    unknown: int  # number of words that became UNK

    def unknown_note(self, words: tuple[str, ...]) -> str:
        """Return how many words are not in the vocabulary, to append to the source; or ""."""
        if not self.unknown:
            return ""
        share = self.unknown / int((self.tokens != PAD).sum() - len(self.tokens))
        noun = "word" if self.unknown == 1 else "words"
        return f"; {self.unknown:,} {noun} ({share:.1%}) outside the vocabulary of {len(words):,}"


def build_vocabulary(
    sentences: Iterable[Sequence[str]], max_words: int | None = None
) -> tuple[str, ...]:
    """Return the special tokens, then the words by descending frequency.

    Equally frequent words are in alphabetical order.

    Args:
        sentences: The training text.
        max_words: The largest number of words, not counting special tokens. None takes all.
    """
    if max_words is not None and max_words < 1:
        raise UserError(f"vocabulary_size must be 1 or more, got {max_words}")
    counts = Counter(word for sentence in sentences for word in sentence)
    counts.pop(SPECIAL_TOKENS[UNK], None)  # already a special token
    for name in SPECIAL_TOKENS[:UNK]:
        if name in counts:
            raise UserError(
                f"the text contains the word {name}, which is a special token here; respell it"
            )
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return SPECIAL_TOKENS + tuple(ranked[:max_words])


def encode_sentences(sentences: Sequence[Sequence[str]], words: tuple[str, ...]) -> TokenTable:
    """Return all sentences as token ids, padded to the longest.

    Raises:
        UserError: The table would take more than 4 GiB.
    """
    # The name of a special token is an unknown word: held-out text was not checked for it.
    ids = {word: index for index, word in enumerate(words) if index >= len(SPECIAL_TOKENS)}
    lengths = np.array([len(sentence) + 1 for sentence in sentences], np.int64)
    longest = int(lengths.max(initial=1))
    if len(sentences) * longest * 4 > _MAX_TABLE_BYTES:
        gigabytes = len(sentences) * longest * 4 / (1 << 30)
        raise UserError(
            f"{len(sentences):,} sentences padded to the longest, {longest - 1:,} words, take "
            f"{gigabytes:.0f} GB; set data.max_words"
        )
    flat = np.fromiter(
        (ids.get(word, UNK) for sentence in sentences for word in sentence), np.int32
    )
    place = np.arange(longest)
    tokens = np.full((len(sentences), longest), PAD, np.int32)
    tokens[place < lengths[:, None] - 1] = flat
    tokens[place == lengths[:, None] - 1] = EOS
    return TokenTable(tokens, lengths, int((flat == UNK).sum()))


def decode_tokens(row: Iterable[int], words: tuple[str, ...]) -> str:
    """Return the words of a row up to EOS as text."""
    text = []
    for token in row:
        if token in (EOS, PAD):
            break
        text.append(words[token])
    return " ".join(text)
