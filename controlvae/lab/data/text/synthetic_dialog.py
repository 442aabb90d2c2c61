"""Conversations drawn from a grammar: dialogs for tests and quick runs that need no file.

Two people talk about one topic of the grammar. A question may be answered by yes, by no or by not knowing; a statement
may be acknowledged, doubted or followed by another. The act, the verb and the thing of a response cannot be known from
what was said before: that is what a code is worth here.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from controlvae.lab.config import SmallTalk
from controlvae.lab.data.dataset import stream_key
from controlvae.lab.data.source import Source
from controlvae.lab.data.splits import Part
from controlvae.lab.data.text.dialogs import Dialog, DialogDataset, Names, Utterance, as_examples
from controlvae.lab.data.text.grammar import NUMBERS, PRONOUN, TENSES, TOPICS, expand

# What may follow an act, and how often.
_NEXT = {
    "": {"question": 0.5, "statement": 0.5},
    "question": {"yes": 0.4, "no": 0.4, "not-known": 0.2},
    "yes": {"acknowledge": 0.4, "question": 0.3, "statement": 0.3},
    "no": {"acknowledge": 0.4, "question": 0.3, "statement": 0.3},
    "not-known": {"statement": 0.6, "question": 0.4},
    "statement": {"acknowledge": 0.3, "doubt": 0.2, "statement": 0.25, "question": 0.25},
    "doubt": {"yes": 0.6, "not-known": 0.4},
    "acknowledge": {"question": 0.5, "statement": 0.5},
}
_SAYINGS = {
    "not-known": ("i do not know .", "who knows ?", "nobody told me ."),
    "acknowledge": ("i see .", "right .", "uh-huh .", "oh , good ."),
    "doubt": ("really ?", "are you sure ?", "oh , come on ."),
}
_ASK = {"past": "did", "present": "do", "future": "will"}
_LEAST, _MOST = 4, 12  # utterances of a dialog
_TOLD = 0.5  # how often the topic is given, and need not be guessed from the words
_TESTED = 3  # the stream of dialogs to test on; the other is 2


def small_talk(count: int, seed: int = 0, part: Part = "train", window: int = 4) -> DialogDataset:
    """So many dialogs. The vocabulary is that of a fixed draw to train on, whatever the count."""
    names = Names.of(draw_dialogs(2_000, 0, "train"))
    split = f"{part}: {count:,} dialogs"
    return as_examples(
        draw_dialogs(count, seed, part), names, window, None, f"small talk, seed {seed}", split
    )


def draw_dialogs(count: int, seed: int = 0, part: Part = "train") -> list[Dialog]:
    """The first of a larger draw are those of a smaller one."""
    random = Random(stream_key(seed, _TESTED if part == "test" else _TESTED - 1))
    return [_dialog(random) for _ in range(count)]


def _dialog(random: Random) -> Dialog:
    topic, tense, number = (_one(values, random) for values in (TOPICS, TENSES, NUMBERS))
    length = _LEAST + int(random.random() * (_MOST - _LEAST + 1))
    act, said = "", []
    for place in range(length):
        act = _following(act, random.random())
        said.append(Utterance(place % 2, _say(act, topic, tense, number, random), act))
    return Dialog(said, topic if random.random() < _TOLD else "")


def _say(act: str, topic: str, tense: str, number: str, random: Random) -> Sequence[str]:
    """One utterance. Who and when stay as they are throughout a dialog; what is done is drawn anew."""

    def some(*symbol: str) -> list[str]:
        return expand(symbol, random).words

    done = [
        *some("verb", topic, tense, number, "no" if act == "no" else "yes"),
        *some("object", topic),
    ]
    match act:
        case "statement":
            return [*some("some person", topic, number), *done, "."]
        case "question":
            verb = some("verb", topic, "present", "many", "yes")
            asked = "does" if (tense, number) == ("present", "one") else _ASK[tense]
            return [asked, *some("some person", topic, number), *verb, *some("object", topic), "?"]
        case "yes" | "no":
            return [act, ",", PRONOUN[number], *done, "."]
    return _one(_SAYINGS[act], random).split()


def _following(act: str, at: float) -> str:
    for name, share in _NEXT[act].items():
        at -= share
        if at < 0:
            return name
    return name


def _one(values: Sequence[str], random: Random) -> str:
    return values[int(random.random() * len(values))]


SOURCE = Source(
    "small-talk",
    SmallTalk,
    about="dialogs drawn from a small grammar: topic 8, acts 7",
    load=lambda settings, root: small_talk(
        settings.dialogs, part=settings.split, window=settings.window
    ),
    test=lambda settings, root: replace(settings, split="test", dialogs=min(settings.dialogs, 500)),
)
