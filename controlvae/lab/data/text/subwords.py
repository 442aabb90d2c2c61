"""Words cut into learnt pieces: none is unknown for being rare, and a few thousand pieces serve any text.

Needs the tokenizers package: `pip install 'controlvae[text]'`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from controlvae.errors import UserError

START = "▁"  # stands before the first piece of a word
_UNKNOWN = "<UNK>"


class Cut:
    """Cuts a sentence of words into their pieces. `learnt` is what the package keeps of them, as JSON."""

    def __init__(self, learnt: str) -> None:
        self.learnt = learnt

    def __call__(self, words: Sequence[str]) -> list[str]:
        return list(self._tokenizer.encode(" ".join(words)).tokens)

    @cached_property
    def _tokenizer(self) -> Any:  # made when a sentence is to be cut: writing needs no package
        package = _tokenizers()
        try:
            return package.Tokenizer.from_str(self.learnt)
        except Exception as error:  # the package raises nothing narrower
            raise UserError(f"the pieces of this model are damaged: {error}") from None


class Pieces(NamedTuple):
    """What words are made of."""

    names: tuple[str, ...]  # letters first, then what was put together from them
    cut: Cut


def learn_pieces(sentences: Sequence[Sequence[str]], most: int) -> Pieces:
    """Byte-pair encoding (Sennrich et al. 2016) learnt from these sentences. Every letter of them is a piece."""
    tokenizers = _tokenizers()
    learner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=_UNKNOWN))
    learner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=START)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=most, special_tokens=[_UNKNOWN], show_progress=False
    )
    learner.train_from_iterator((" ".join(words) for words in sentences), trainer)
    names = sorted(learner.get_vocab(), key=learner.get_vocab().__getitem__)
    if len(names) - 1 > most:
        letters = sum(len(name) == 1 for name in names)
        raise UserError(
            f"pieces={most:,} is fewer than the letters of this text, {letters:,}; set data.pieces higher"
        )
    return Pieces(tuple(names[1:]), Cut(learner.to_str()))


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "data.pieces needs the tokenizers package: pip install 'controlvae[text]'"
        ) from None
    return tokenizers


def whole(pieces: str) -> str:
    """A sentence of pieces with spaces between them, put together again."""
    return pieces.replace(" ", "").replace(START, " ").strip()
