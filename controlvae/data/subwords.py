"""Words cut into learnt pieces: none is unknown for being rare, and a few thousand pieces serve any text.

Needs the tokenizers package: `pip install 'controlvae[text]'`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from controlvae.errors import UserError

START = "▁"  # stands before the first piece of a word
_UNKNOWN = "<UNK>"


Cut = Callable[[Sequence[str]], list[str]]  # a sentence of words into their pieces


class Pieces(NamedTuple):
    """What words are made of."""

    names: tuple[str, ...]  # letters first, then what was put together from them
    cut: Cut


def learn_pieces(sentences: Sequence[Sequence[str]], most: int) -> Pieces:
    """Byte-pair encoding (Sennrich et al. 2016) learnt from these sentences. Every letter of them is a piece."""
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        raise UserError("data.pieces needs the tokenizers package: pip install 'controlvae[text]'") from None
    learner = Tokenizer(models.BPE(unk_token=_UNKNOWN))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=START)
    trainer = trainers.BpeTrainer(vocab_size=most, special_tokens=[_UNKNOWN], show_progress=False)
    learner.train_from_iterator((" ".join(words) for words in sentences), trainer)
    names = sorted(learner.get_vocab(), key=learner.get_vocab().__getitem__)
    if len(names) - 1 > most:
        letters = sum(len(name) == 1 for name in names)
        raise UserError(f"pieces={most:,} is fewer than the letters of this text, {letters:,}; set data.pieces higher")
    return Pieces(tuple(names[1:]), lambda words: learner.encode(" ".join(words)).tokens)


def whole(pieces: str) -> str:
    """A sentence of pieces with spaces between them, put together again."""
    return pieces.replace(" ", "").replace(START, " ").strip()
