"""Data sets of dialogs: responses with their context, speakers, dialog acts and topics."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.bucketing import BucketOrder
from controlvae.lab.data.dataset import hash_rows
from controlvae.lab.data.text.vocabulary import (
    PAD,
    build_vocabulary,
    decode_tokens,
    encode_sentences,
)
from controlvae.lab.reading import parse_json

# Numbers about a speaker: age / 100, education / 3, female, male. Zeros if nothing is known.
PROFILE_SIZE = 4
UNKNOWN_PROFILE = (0.0,) * PROFILE_SIZE


class Utterance(NamedTuple):
    """Words that one of two speakers says without a break."""

    speaker: int  # 0 or 1
    words: Sequence[str]
    act: str = ""  # dialog act; empty if unknown


class Dialog(NamedTuple):
    """A conversation of two speakers."""

    utterances: Sequence[Utterance]
    topic: str = ""
    profiles: tuple[Sequence[float], Sequence[float]] = (UNKNOWN_PROFILE, UNKNOWN_PROFILE)


def merge_turns(dialog: Dialog) -> Dialog:
    """Join what a speaker says without a break into one utterance.

    The joined utterance has the act of its longest part, the first of several.
    """
    turns = [list(turn) for _, turn in groupby(dialog.utterances, key=lambda u: u.speaker)]
    return dialog._replace(utterances=[_join(turn) for turn in turns])


def _join(parts: Sequence[Utterance]) -> Utterance:
    longest = max(parts, key=lambda part: len(part.words))
    return longest._replace(words=[word for part in parts for word in part.words])


class DialogVocabulary(NamedTuple):
    """Words, topics and dialog acts of the training dialogs, in the order of their ids.

    The first topic and the first act are empty and stand for unknown ones.
    """

    words: tuple[str, ...]
    topics: tuple[str, ...]
    acts: tuple[str, ...]

    @classmethod
    def build(cls, dialogs: Sequence[Dialog], max_words: int | None = None) -> "DialogVocabulary":
        """Collect the vocabulary of dialogs with at most `max_words` words; None takes all."""
        utterances = [utterance for dialog in dialogs for utterance in dialog.utterances]
        words = build_vocabulary((utterance.words for utterance in utterances), max_words)
        topics = {dialog.topic for dialog in dialogs} | {""}
        acts = {utterance.act for utterance in utterances} | {""}
        return cls(words, tuple(sorted(topics)), tuple(sorted(acts)))


@dataclass(frozen=True)
class DialogBatch:
    """A batch of contexts and the responses to them."""

    # (batch, window, T) int64: the oldest utterance first; unused positions at the end are all PAD
    context: Tensor
    floors: Tensor  # (batch, window) int64: 1 where the responding speaker spoke
    response: Tensor  # (batch, T) int64: words, EOS, then PAD
    act: Tensor  # (batch,) int64, of the response
    topic: Tensor  # (batch,) int64
    profiles: Tensor  # (batch, 2, PROFILE_SIZE): of the responding speaker, and of the other

    def __len__(self) -> int:
        return len(self.response)

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.response.device


@dataclass(frozen=True)
class DialogDataset:
    """Responses with their contexts as a `Dataset`.

    Every utterance is stored once, and contexts are looked up.
    """

    tokens: Tensor  # (utterances, longest) int32: words, EOS, then PAD; dialog after dialog
    spoken: Tensor  # (utterances, 4) int64: dialog, position in the dialog, speaker, act
    topics: Tensor  # (dialogs,) int64
    profiles: Tensor  # (dialogs, 2, PROFILE_SIZE)
    responses: Tensor  # (count,) int64: indices of utterances that are responses
    # (count, 2) int64, on the host: tokens of the context's longest utterance, and of the response
    lengths: Tensor
    names: DialogVocabulary
    window: int  # utterances of a context, at most
    source: str
    split: str = "all"
    factors: np.ndarray | None = None
    factor_names: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    levels: Mapping[str, np.ndarray] = field(default_factory=dict)
    eval_batch_size: ClassVar[int] = 50
    metadata_file: ClassVar[str] = "words.json"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Words by token id."""
        return self.names.words

    @property
    def shape(self) -> tuple[int, int]:
        """Number of utterances in a context, and of tokens in an utterance."""
        return self.window, self.tokens.shape[1]

    def __len__(self) -> int:
        return len(self.responses)

    def batch(self, indices: Tensor, widths: Sequence[int] | None = None) -> DialogBatch:
        """Return the contexts and responses at these indices, (n,).

        On the host it is checked that only padding is cut off. On a device the check would have to
        wait for the device.

        Args:
            indices: Positions of the responses.
            widths: The number of columns of contexts and of responses, as `BucketOrder.width`
                gives them. None takes all columns.
        """
        if widths is not None and indices.device.type == "cpu" and len(indices):
            longest = self.lengths[indices].amax(0).tolist()
            if any(length > width for length, width in zip(longest, widths, strict=True)):
                raise ValueError(
                    f"widths must be {longest} or more to hold these dialogs, got {list(widths)}"
                )
        context_width, response_width = widths or (self.tokens.shape[1],) * 2
        rows = self.responses[indices]
        dialog, position, speaker, act = self.spoken[rows].unbind(1)
        available = position.clamp(max=self.window)[:, None]
        offset = torch.arange(self.window, device=rows.device)
        is_used = offset < available
        before = torch.where(is_used, rows[:, None] - available + offset, rows[:, None])
        context = torch.where(is_used[:, :, None], self.tokens[before, :context_width].long(), PAD)
        floors = (self.spoken[before, 2] == speaker[:, None]) & is_used
        both = torch.stack([speaker, 1 - speaker], 1)[:, :, None].expand(-1, -1, PROFILE_SIZE)
        return DialogBatch(
            context,
            floors.long(),
            self.tokens[rows, :response_width].long(),
            act,
            self.topics[dialog],
            self.profiles[dialog].gather(1, both),
        )

    def batches(self, indices: Tensor) -> Iterator[DialogBatch]:
        """Yield the contexts and responses at these indices in batches."""
        return (self.batch(part) for part in indices.split(self.eval_batch_size))

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
            batch: The number of responses in a batch.
            seed: The seed of the run.
            stream: The number of an independent order of the same seed.
            subset: The indices of the responses to use. None uses all.
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

    def to(self, device: torch.device) -> "DialogDataset":
        """Return the data set with its tensors on the device."""
        names = ("tokens", "spoken", "topics", "profiles", "responses")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def fingerprint(self) -> str:
        """Return a digest of the size, the vocabulary and three utterances."""
        label = f"{len(self)} {self.window} {self.names.topics} {self.names.acts}"
        return hash_rows(f"{label} {' '.join(self.vocabulary)}", self.tokens)

    def metadata(self) -> str:
        """Return, as JSON, what a model needs to respond."""
        content = {**self.names._asdict(), "window": self.window, "longest": self.shape[1]}
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_metadata(cls, metadata: str, reason: str) -> "DialogDataset":
        """Return an empty data set with the vocabulary that `metadata()` stored.

        Args:
            metadata: The JSON text.
            reason: The reason why the dialogs are missing. It becomes the data set's `source`.
        """
        content = parse_json(metadata)
        names = DialogVocabulary(*(tuple(content[kind]) for kind in DialogVocabulary._fields))
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(
            torch.zeros(0, content["longest"], dtype=torch.int32),
            empty.view(0, 4),
            empty,
            torch.zeros(0, 2, PROFILE_SIZE),
            empty,
            empty.view(0, 2),
            names,
            content["window"],
            reason,
        )

    def to_text(self, row: Tensor | Iterable[int]) -> str:
        """Return a row of token ids as text."""
        return decode_tokens(row.tolist() if isinstance(row, Tensor) else row, self.vocabulary)

    def make_context(self, utterances: Sequence[Utterance], topic: str = "") -> DialogBatch:
        """Return a batch of one: the context of a response to these utterances.

        The response is by the speaker who did not speak last.
        """
        response = Utterance(1 - utterances[-1].speaker, ())
        dialog = Dialog([*utterances[-self.window :], response], topic)
        max_words = self.tokens.shape[1] - 1
        data = build_dialog_dataset([dialog], self.names, self.window, max_words, "", "")
        last = torch.tensor([len(data) - 1], device=self.tokens.device)
        return data.to(self.tokens.device).batch(last)


def build_dialog_dataset(
    dialogs: Sequence[Dialog],
    names: DialogVocabulary,
    window: int,
    max_words: int | None,
    source: str,
    split: str,
) -> DialogDataset:
    """Turn every utterance but the first of each dialog into a response with its context.

    Args:
        dialogs: The dialogs.
        names: The vocabulary of the training dialogs.
        window: The number of utterances in a context; fewer at the start of a dialog.
        max_words: The number of words to which utterances are cut, as in the released code. None
            keeps all. The source gets a note about cut utterances.
        source: Human-readable origin of the data.
        split: Human-readable name of the split.

    Raises:
        UserError: No dialog has a second utterance.
    """
    utterances = [utterance for dialog in dialogs for utterance in dialog.utterances]
    encoded = encode_sentences(
        [utterance.words[:max_words] for utterance in utterances], names.words
    )
    table = _utterance_table(dialogs, names)
    responses = np.flatnonzero(table[:, 1] > 0)
    if not len(responses):
        raise UserError(f"{source} holds no utterance that answers another")
    cut = 0
    if max_words is not None:
        cut = sum(len(utterance.words) > max_words for utterance in utterances)
    note = f"; {cut:,} of {len(utterances):,} utterances cut to {max_words} words" if cut else ""
    topic_ids = {name: number for number, name in enumerate(names.topics)}
    context_lengths = _context_lengths(encoded.lengths, table, window)
    lengths = np.stack([context_lengths, encoded.lengths], 1)[responses]
    return DialogDataset(
        torch.from_numpy(encoded.tokens),
        torch.from_numpy(table),
        torch.tensor([topic_ids.get(dialog.topic, 0) for dialog in dialogs]),
        torch.tensor([dialog.profiles for dialog in dialogs], dtype=torch.float32),
        torch.from_numpy(responses),
        torch.from_numpy(lengths),
        names,
        window,
        source + note + encoded.unknown_note(names.words),
        split,
    )


def _utterance_table(dialogs: Sequence[Dialog], names: DialogVocabulary) -> np.ndarray:
    """Return dialog, position, speaker and act of every utterance: (utterances, 4)."""
    act_ids = {act: index for index, act in enumerate(names.acts)}
    rows = [
        (number, position, utterance.speaker, act_ids.get(utterance.act, 0))
        for number, dialog in enumerate(dialogs)
        for position, utterance in enumerate(dialog.utterances)
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def _context_lengths(lengths: np.ndarray, table: np.ndarray, window: int) -> np.ndarray:
    """Return the length of the longest utterance in the context of each: (utterances,)."""
    longest = np.ones_like(lengths)
    for back in range(1, min(window, len(lengths) - 1) + 1):
        earlier = np.where(table[back:, 1] >= back, lengths[:-back], 1)
        longest[back:] = np.maximum(longest[back:], earlier)
    return longest
