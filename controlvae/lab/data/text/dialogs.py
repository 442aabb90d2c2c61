"""Dialogs as examples: every utterance that answers others, with those before it, who spoke, its act and its topic."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.bucketing import BucketOrder
from controlvae.lab.data.dataset import digest
from controlvae.lab.data.text.vocabulary import PAD, to_numbers, to_words, vocabulary

PROFILE = 4  # numbers about a speaker: age / 100, education / 3, female, male; zeros where nothing is known
NOBODY = (0.0,) * PROFILE


class Utterance(NamedTuple):
    """What one of two speakers said at once."""

    speaker: int  # 0 or 1
    words: Sequence[str]
    act: str = ""  # dialog act; empty where it is not known


class Dialog(NamedTuple):
    """A conversation of two."""

    utterances: Sequence[Utterance]
    topic: str = ""
    profiles: tuple[Sequence[float], Sequence[float]] = (NOBODY, NOBODY)


class Names(NamedTuple):
    """What numbers stand for: those of the training dialogs. An unknown topic or act is the first, the empty one."""

    words: tuple[str, ...]
    topics: tuple[str, ...]
    acts: tuple[str, ...]

    @classmethod
    def of(cls, dialogs: Sequence[Dialog], words: int | None = None) -> "Names":
        """`words` is as in `vocabulary`."""
        spoken = [utterance for dialog in dialogs for utterance in dialog.utterances]
        known = vocabulary((utterance.words for utterance in spoken), words)
        topics, acts = (
            {dialog.topic for dialog in dialogs} | {""},
            {utterance.act for utterance in spoken} | {""},
        )
        return cls(known, tuple(sorted(topics)), tuple(sorted(acts)))


@dataclass(frozen=True)
class Exchanges:
    """A batch: contexts and the responses to them."""

    context: Tensor  # (batch, window, T) int64: the oldest utterance first, then places without one, which are all PAD
    floors: Tensor  # (batch, window) int64: 1 where the one who responds spoke
    response: Tensor  # (batch, T) int64: words, EOS, then PAD
    act: Tensor  # (batch,) int64, of the response
    topic: Tensor  # (batch,) int64
    profiles: Tensor  # (batch, 2, PROFILE): of the one who responds, and of the other

    def __len__(self) -> int:
        return len(self.response)

    @property
    def device(self) -> torch.device:
        return self.response.device


@dataclass(frozen=True)
class DialogDataset:
    """Responses with their contexts as `Examples`. Every utterance is kept once; contexts are looked up."""

    tokens: Tensor  # (utterances, longest) int32: words, EOS, then PAD; dialogs one after another
    spoken: Tensor  # (utterances, 4) int64: number of the dialog, place in it, speaker, act
    topics: Tensor  # (dialogs,) int64
    profiles: Tensor  # (dialogs, 2, PROFILE)
    responses: Tensor  # (count,) int64, which utterances are responses
    lengths: Tensor  # (count, 2) int64, on the host: tokens of the context's longest utterance, of the response
    names: Names
    window: int  # utterances of a context at most
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
        return self.names.words

    @property
    def shape(self) -> tuple[int, int]:
        """Utterances before a response, and the tokens of one."""
        return self.window, self.tokens.shape[1]

    def __len__(self) -> int:
        return len(self.responses)

    def batch(self, indices: Tensor, widths: Sequence[int] | None = None) -> Exchanges:
        """The exchanges at these indices, (n,).

        With `widths`, such as `BucketOrder` gives, only so many columns of the contexts and of the responses. On the
        host it is checked that nothing but padding is cut off; on a device that would mean waiting for it.
        """
        if widths is not None and indices.device.type == "cpu" and len(indices):
            longest = self.lengths[indices].amax(0).tolist()
            if any(length > width for length, width in zip(longest, widths, strict=True)):
                raise ValueError(
                    f"widths must be {longest} or more to hold these exchanges, got {list(widths)}"
                )
        wide, narrow = widths or (self.tokens.shape[1],) * 2
        rows = self.responses[indices]
        dialog, place, speaker, act = self.spoken[rows].unbind(1)
        spoken = place.clamp(max=self.window)[:, None]
        ahead = torch.arange(self.window, device=rows.device)
        there = ahead < spoken
        before = torch.where(there, rows[:, None] - spoken + ahead, rows[:, None])
        context = torch.where(there[:, :, None], self.tokens[before, :wide].long(), PAD)
        floors = (self.spoken[before, 2] == speaker[:, None]) & there
        both = torch.stack([speaker, 1 - speaker], 1)[:, :, None].expand(-1, -1, PROFILE)
        return Exchanges(
            context,
            floors.long(),
            self.tokens[rows, :narrow].long(),
            act,
            self.topics[dialog],
            self.profiles[dialog].gather(1, both),
        )

    def batches(self, indices: Tensor) -> Iterator[Exchanges]:
        return (self.batch(few) for few in indices.split(self.eval_batch_size))

    def order(
        self, batch: int, seed: int, stream: int = 0, among: Tensor | None = None
    ) -> BucketOrder:
        return BucketOrder(self.lengths, batch, seed, stream=stream, among=among)

    def to(self, device: torch.device) -> "DialogDataset":
        names = ("tokens", "spoken", "topics", "profiles", "responses")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def fingerprint(self) -> str:
        numbers = f"{len(self)} {self.window} {self.names.topics} {self.names.acts}"
        return digest(f"{numbers} {' '.join(self.vocabulary)}", self.tokens)

    def metadata(self) -> str:
        """What a model needs of them to respond, as JSON."""
        return json.dumps(
            {**self.names._asdict(), "window": self.window, "longest": self.shape[1]},
            ensure_ascii=False,
        )

    @classmethod
    def from_metadata(cls, kept: str, reason: str) -> "DialogDataset":
        """No dialogs, and the names in those that `kept` was of; `reason` says why they are not here."""
        found = json.loads(kept)
        names = Names(*(tuple(found[kind]) for kind in Names._fields))
        none, tokens = (
            torch.zeros(0, dtype=torch.int64),
            torch.zeros(0, found["longest"], dtype=torch.int32),
        )
        parts = tokens, none.view(0, 4), none, torch.zeros(0, 2, PROFILE), none, none.view(0, 2)
        return cls(*parts, names, found["window"], reason)

    def words(self, row: Tensor | Iterable[int]) -> str:
        """A row of tokens back as text."""
        return to_words(row.tolist() if isinstance(row, Tensor) else row, self.vocabulary)

    def ask(self, said: Sequence[Utterance], topic: str = "") -> Exchanges:
        """What was said so far, as the context of an utterance by the one who did not speak last; a batch of one."""
        answer = Utterance(1 - said[-1].speaker, ())
        asked = Dialog([*said[-self.window :], answer], topic)
        one = as_examples([asked], self.names, self.window, self.tokens.shape[1] - 1, "", "").to(
            self.tokens.device
        )
        return one.batch(torch.tensor([len(one) - 1], device=self.tokens.device))


def as_examples(
    dialogs: Sequence[Dialog],
    names: Names,
    window: int,
    longest: int | None,
    source: str,
    split: str,
) -> DialogDataset:
    """Every utterance but the first of each dialog, as a response to the `window` before it, or fewer at the beginning.

    Utterances of more than `longest` words are cut, as in the released code; `source` says how many.
    """
    spoken = [utterance for dialog in dialogs for utterance in dialog.utterances]
    numbers = to_numbers([utterance.words[:longest] for utterance in spoken], names.words)
    table = _table(dialogs, names)
    responses = np.flatnonzero(table[:, 1] > 0)
    if not len(responses):
        raise UserError(f"{source} holds no utterance that answers another")
    cut = 0 if longest is None else sum(len(utterance.words) > longest for utterance in spoken)
    note = f"; {cut:,} of {len(spoken):,} utterances cut to {longest} words" if cut else ""
    topic = {name: number for number, name in enumerate(names.topics)}
    return DialogDataset(
        torch.from_numpy(numbers.tokens),
        torch.from_numpy(table),
        torch.tensor([topic.get(dialog.topic, 0) for dialog in dialogs]),
        torch.tensor([dialog.profiles for dialog in dialogs], dtype=torch.float32),
        torch.from_numpy(responses),
        torch.from_numpy(
            np.stack([_longest_before(numbers.lengths, table, window), numbers.lengths], 1)[
                responses
            ]
        ),
        names,
        window,
        source + note + numbers.note(names.words),
        split,
    )


def _table(dialogs: Sequence[Dialog], names: Names) -> np.ndarray:
    """Of every utterance the number of its dialog, its place there, its speaker and its act: (utterances, 4)."""
    number = {act: index for index, act in enumerate(names.acts)}
    rows = [
        (which, place, utterance.speaker, number.get(utterance.act, 0))
        for which, dialog in enumerate(dialogs)
        for place, utterance in enumerate(dialog.utterances)
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def _longest_before(lengths: np.ndarray, table: np.ndarray, window: int) -> np.ndarray:
    """The most tokens among the utterances before each in its dialog, as far back as the window: (utterances,)."""
    most = np.ones_like(lengths)
    for back in range(1, min(window, len(lengths) - 1) + 1):
        earlier = np.where(table[back:, 1] >= back, lengths[:-back], 1)
        most[back:] = np.maximum(most[back:], earlier)
    return most
