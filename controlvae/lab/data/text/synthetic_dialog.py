"""Dialogs drawn from a grammar, for tests and quick runs without files.

Two speakers talk about one topic of the grammar. A question may be answered by yes, no or not
knowing. A statement may be acknowledged, doubted or followed by another. The act, the verb and the
object of a response cannot be predicted from the context: that is the information a latent code
can carry here.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from controlvae.lab.config import SmallTalk
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.splits import TrainTest
from controlvae.lab.data.text.dialogs import (
    Dialog,
    DialogDataset,
    DialogVocabulary,
    Utterance,
    build_dialog_dataset,
)
from controlvae.lab.data.text.grammar import NUMBERS, PRONOUN, TENSES, TOPICS, expand_symbol

# Probabilities of the next dialog act.
_TRANSITIONS = {
    "": {"question": 0.5, "statement": 0.5},
    "question": {"yes": 0.4, "no": 0.4, "not-known": 0.2},
    "yes": {"acknowledge": 0.4, "question": 0.3, "statement": 0.3},
    "no": {"acknowledge": 0.4, "question": 0.3, "statement": 0.3},
    "not-known": {"statement": 0.6, "question": 0.4},
    "statement": {"acknowledge": 0.3, "doubt": 0.2, "statement": 0.25, "question": 0.25},
    "doubt": {"yes": 0.6, "not-known": 0.4},
    "acknowledge": {"question": 0.5, "statement": 0.5},
}
_FIXED_PHRASES = {
    "not-known": ("i do not know .", "who knows ?", "nobody told me ."),
    "acknowledge": ("i see .", "right .", "uh-huh .", "oh , good ."),
    "doubt": ("really ?", "are you sure ?", "oh , come on ."),
}
_QUESTION_VERBS = {"past": "did", "present": "do", "future": "will"}
_MIN_UTTERANCES, _MAX_UTTERANCES = 4, 12
_TOPIC_PROBABILITY = 0.5  # that the topic of a dialog is given
_TRAIN_STREAM, _TEST_STREAM = 2, 3


def small_talk_dataset(
    count: int, seed: int = 0, split: TrainTest = "train", window: int = 4
) -> DialogDataset:
    """Draw a data set of dialogs. Its vocabulary is that of a fixed training set.

    Args:
        count: The number of dialogs.
        seed: The seed of the random numbers.
        split: "train" or "test", which are independent.
        window: The number of utterances in a context, at most.
    """
    names = DialogVocabulary.build(draw_dialogs(2_000, 0, "train"))
    dialogs = draw_dialogs(count, seed, split)
    source, split_name = f"small talk, seed {seed}", f"{split}: {count:,} dialogs"
    return build_dialog_dataset(dialogs, names, window, None, source, split_name)


def draw_dialogs(count: int, seed: int = 0, split: TrainTest = "train") -> list[Dialog]:
    """Draw dialogs. A smaller draw is the start of a larger one.

    Args:
        count: The number of dialogs.
        seed: The seed of the random numbers.
        split: "train" or "test", which are independent.
    """
    random = Random(stream_key(seed, _TEST_STREAM if split == "test" else _TRAIN_STREAM))
    return [_draw_dialog(random) for _ in range(count)]


def _draw_dialog(random: Random) -> Dialog:
    topic, tense, number = (_choose(values, random) for values in (TOPICS, TENSES, NUMBERS))
    length = _MIN_UTTERANCES + int(random.random() * (_MAX_UTTERANCES - _MIN_UTTERANCES + 1))
    act, utterances = "", []
    for position in range(length):
        act = _next_act(act, random.random())
        words = _draw_words(act, topic, tense, number, random)
        utterances.append(Utterance(position % 2, words, act))
    return Dialog(utterances, topic if random.random() < _TOPIC_PROBABILITY else "")


def _draw_words(act: str, topic: str, tense: str, number: str, random: Random) -> Sequence[str]:
    """Draw one utterance. Subject and tense stay the same throughout a dialog; verbs do not."""

    def draw(*symbol: str) -> list[str]:
        return expand_symbol(symbol, random).words

    polarity = "no" if act == "no" else "yes"
    predicate = [*draw("verb", topic, tense, number, polarity), *draw("object", topic)]
    match act:
        case "statement":
            return [*draw("some person", topic, number), *predicate, "."]
        case "question":
            verb = draw("verb", topic, "present", "many", "yes")
            is_third_person = (tense, number) == ("present", "one")
            first = "does" if is_third_person else _QUESTION_VERBS[tense]
            return [first, *draw("some person", topic, number), *verb, *draw("object", topic), "?"]
        case "yes" | "no":
            return [act, ",", PRONOUN[number], *predicate, "."]
    return _choose(_FIXED_PHRASES[act], random).split()


def _next_act(act: str, uniform: float) -> str:
    for name, probability in _TRANSITIONS[act].items():
        uniform -= probability
        if uniform < 0:
            return name
    return name


def _choose(values: Sequence[str], random: Random) -> str:
    return values[int(random.random() * len(values))]


SPECS = [
    DatasetSpec(
        "small-talk",
        SmallTalk,
        lambda settings, root: small_talk_dataset(
            settings.dialogs, split=settings.split, window=settings.window
        ),
        about="dialogs drawn from a small grammar: 8 topics, 7 dialog acts",
        test_settings=lambda settings, root: replace(
            settings, split="test", dialogs=min(settings.dialogs, 500)
        ),
    )
]
