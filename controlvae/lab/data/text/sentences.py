"""Data sets of sentences as rows of token ids."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from controlvae.lab.data.bucketing import BucketOrder, iter_buckets
from controlvae.lab.data.dataset import hash_rows
from controlvae.lab.data.text.subwords import SubwordTokenizer, join_subwords
from controlvae.lab.data.text.vocabulary import SPECIAL_TOKENS, decode_tokens, encode_sentences
from controlvae.lab.reading import parse_json


@dataclass(frozen=True)
class SentenceDataset:
    """Sentences as a `Dataset`.

    A row holds the words of a sentence, EOS, then PAD. The model prepends BOS.
    """

    tokens: Tensor  # (count, longest) int32
    lengths: Tensor  # (count,) int64, words and EOS; on the host, where batches are planned
    vocabulary: tuple[str, ...]
    source: str
    split: str = "all"
    factors: np.ndarray | None = None
    factor_names: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    levels: Mapping[str, np.ndarray] = field(default_factory=dict)
    tokenizer: SubwordTokenizer | None = None  # None: tokens are whole words
    lower: bool = False  # sentences are converted to lower case
    eval_batch_size: ClassVar[int] = 50  # logits for the whole vocabulary at every position
    metadata_file: ClassVar[str] = "words.json"

    @property
    def shape(self) -> tuple[int]:
        """Number of tokens per row, (longest,)."""
        return (self.tokens.shape[1],)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, indices: Tensor, width: int | None = None) -> Tensor:
        """Return the rows at these indices: int64, (*indices.shape, width).

        On the host it is checked that only padding is cut off. On a device the check would have to
        wait for the device.

        Args:
            indices: Positions of the sentences.
            width: The number of columns, as `BucketOrder.width` gives it. None takes all columns:
                one shape for all batches, as a captured graph needs.
        """
        if width is not None and indices.device.type == "cpu" and len(indices):
            longest = int(self.lengths[indices].max())
            if longest > width:
                raise ValueError(
                    f"width must be {longest} or more to hold these sentences, got {width}"
                )
        rows = self.tokens.index_select(0, indices.reshape(-1).to(self.tokens.device))
        return rows.to(indices.device)[:, :width].long().view(*indices.shape, -1)

    def batches(self, indices: Tensor) -> Iterator[Tensor]:
        """Yield the rows at these indices in batches of similar length."""
        for part, width in iter_buckets(self.lengths[indices.cpu()], self.eval_batch_size):
            yield self.batch(indices[part.to(indices.device)], width)

    def order(
        self,
        batch: int,
        seed: int,
        stream: int = 0,
        subset: Tensor | None = None,
        shared_widths: bool = False,
    ) -> BucketOrder:
        """Return the batch order of a run.

        Args:
            batch: The number of sentences in a batch.
            seed: The seed of the run.
            stream: The number of an independent order of the same seed.
            subset: The indices of the sentences to use. None uses all.
            shared_widths: Let all seeds have the same sequence of widths.
        """
        return BucketOrder(
            self.lengths,
            batch,
            seed,
            stream=stream,
            subset=subset,
            shared_widths=shared_widths,
        )

    def to(self, device: torch.device) -> "SentenceDataset":
        """Return the data set with its tokens on the device."""
        return replace(self, tokens=self.tokens.to(device))

    def fingerprint(self) -> str:
        """Return a digest of the size, the vocabulary and three sentences."""
        return hash_rows(f"{len(self)} {' '.join(self.vocabulary)}", self.tokens)

    def metadata(self) -> str:
        """Return, as JSON, what a model needs to generate text."""
        content = {"vocabulary": self.vocabulary, "lower": self.lower, "longest": self.shape[0]}
        subwords = {"pieces": self.tokenizer.model_json} if self.tokenizer else {}
        return json.dumps(content | subwords, ensure_ascii=False)

    @classmethod
    def from_metadata(cls, metadata: str, reason: str) -> "SentenceDataset":
        """Return an empty data set with the vocabulary that `metadata()` stored.

        Args:
            metadata: The JSON text.
            reason: The reason why the sentences are missing. It becomes the data set's `source`.
        """
        content = parse_json(metadata)
        tokens = torch.zeros(0, content["longest"], dtype=torch.int32)
        lengths = torch.zeros(0, dtype=torch.int64)
        tokenizer = SubwordTokenizer(content["pieces"]) if "pieces" in content else None
        vocabulary, lower = tuple(content["vocabulary"]), content["lower"]
        return cls(tokens, lengths, vocabulary, reason, tokenizer=tokenizer, lower=lower)

    def encode(self, sentence: str) -> Tensor:
        """Return the token ids of a sentence and EOS: int64, (T,)."""
        words = self._split(sentence)
        tokens = self.tokenizer(words) if self.tokenizer else words
        return torch.from_numpy(encode_sentences([tokens], self.vocabulary).tokens[0]).long()

    def unknown_words(self, sentence: str) -> list[str]:
        """Return the words of a sentence that are not in the vocabulary."""
        known, words = set(self.vocabulary) - set(SPECIAL_TOKENS), self._split(sentence)
        return [
            word
            for word in dict.fromkeys(words)
            if not known.issuperset(self.tokenizer([word]) if self.tokenizer else [word])
        ]

    def to_text(self, row: Tensor | Iterable[int]) -> str:
        """Return a row of token ids as text."""
        text = decode_tokens(row.tolist() if isinstance(row, Tensor) else row, self.vocabulary)
        return join_subwords(text) if self.tokenizer else text

    def _split(self, sentence: str) -> list[str]:
        return (sentence.lower() if self.lower else sentence).split()


def build_sentence_dataset(
    sentences: list[list[str]], words: tuple[str, ...], source: str, split: str
) -> SentenceDataset:
    """Encode sentences. The source gets a note about words outside the vocabulary.

    Args:
        sentences: Words or subwords of each sentence.
        words: The vocabulary.
        source: Human-readable origin of the data.
        split: Human-readable name of the split.
    """
    table = encode_sentences(sentences, words)
    tokens, lengths = torch.from_numpy(table.tokens), torch.from_numpy(table.lengths)
    return SentenceDataset(tokens, lengths, words, source + table.unknown_note(words), split)


def split_lines(text: str, lower: bool = False) -> list[list[str]]:
    """Return the words of every line that is not blank."""
    lines = (line.split() for line in (text.lower() if lower else text).split("\n"))
    return [words for words in lines if words]
