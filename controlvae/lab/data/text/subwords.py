"""Subword tokens: byte-pair encoding, in which no word is unknown for being rare.

Needs the tokenizers package: `pip install 'controlvae[text]'`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from controlvae.errors import UserError

WORD_START = "▁"  # precedes the first subword of a word
_UNKNOWN = "<UNK>"


class SubwordTokenizer:
    """Splits sentences into subwords.

    Args:
        model_json: The tokenizer as the tokenizers package serializes it.
    """

    def __init__(self, model_json: str) -> None:
        self.model_json = model_json

    def __call__(self, words: Sequence[str]) -> list[str]:
        """Return the subwords of a sentence."""
        return list(self._tokenizer.encode(" ".join(words)).tokens)

    @cached_property
    def _tokenizer(self) -> Any:  # loaded on first use: generating text does not need the package
        package = _import_tokenizers()
        try:
            return package.Tokenizer.from_str(self.model_json)
        except Exception as error:  # the package raises nothing narrower
            raise UserError(f"the subwords of this model are corrupt: {error}") from None


class LearnedSubwords(NamedTuple):
    """Subwords learned from a text."""

    names: tuple[str, ...]  # letters first, then their combinations
    tokenizer: SubwordTokenizer


def learn_subwords(sentences: Sequence[Sequence[str]], size: int) -> LearnedSubwords:
    """Learn a byte-pair encoding (Sennrich et al. 2016) from sentences.

    Args:
        sentences: The training text. Every letter of it becomes a subword.
        size: The largest number of subwords.

    Raises:
        UserError: The text has more letters than `size`.
    """
    tokenizers = _import_tokenizers()
    learner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=_UNKNOWN))
    learner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=WORD_START)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[_UNKNOWN], show_progress=False
    )
    learner.train_from_iterator((" ".join(words) for words in sentences), trainer)
    names = sorted(learner.get_vocab(), key=learner.get_vocab().__getitem__)
    if len(names) - 1 > size:
        letters = sum(len(name) == 1 for name in names)
        raise UserError(
            f"subwords={size:,} is fewer than the letters of this text, {letters:,}; "
            f"set data.subwords higher"
        )
    return LearnedSubwords(tuple(names[1:]), SubwordTokenizer(learner.to_str()))


def join_subwords(text: str) -> str:
    """Return a sentence of subwords separated by spaces as words."""
    return text.replace(" ", "").replace(WORD_START, " ").strip()


def _import_tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "data.subwords needs the tokenizers package: pip install 'controlvae[text]'"
        ) from None
    return tokenizers
