"""Sentences drawn from a probabilistic grammar: a text for tests and quick runs that needs no file.

Every sentence has a topic, a tense, a number and a polarity, held throughout: they choose the nouns, verbs and
adjectives, the forms of every verb, and the pronouns. That is log(8 x 3 x 2 x 2) = 4.56 nats worth knowing beforehand.
But a decoder that sees the words before learns them from the first few, and is tempted to ignore a code: the collapse
that the paper is about, in small. A sentence has one derivation, so its probability is known, and with it the best NLL.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random
from typing import NamedTuple

import numpy as np
import torch

from controlvae.errors import UserError
from controlvae.lab.config import Grammar
from controlvae.lab.data.dataset import stream_key
from controlvae.lab.data.source import Source
from controlvae.lab.data.splits import Part
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.data.text.vocabulary import SPECIAL, to_numbers

# Per topic: people, things, verbs (regular ones), adjectives, places. No word serves two topics.
LEXICON = {
    "kitchen": "cook baker waiter guest butcher | soup cake onion pepper carrot | "
    "stir taste boil roast season | spicy salty hungry warm sweet | oven table cellar",
    "sea": "sailor captain pirate diver admiral | anchor sail rope lantern compass | "
    "hoist repair follow mend lower | stormy salted brave rusty seasick | harbour island lighthouse",
    "garden": "gardener neighbour florist beekeeper farmer | rose hedge apple seed melon | "
    "plant water prune pick rake | green muddy patient thorny ripe | fence pond greenhouse",
    "music": "singer drummer pianist conductor composer | song violin melody trumpet chord | "
    "play record rehearse tune compose | loud gentle famous rhythmic shy | stage concert studio",
    "court": "judge lawyer witness clerk juror | verdict document question crime contract | "
    "examine sign reject discuss recall | honest guilty solemn legal stern | courtroom archive office",
    "hospital": "doctor nurse midwife surgeon visitor | bandage needle pill chart wound | "
    "clean measure treat inspect cover | tired careful pale sterile young | ward clinic pharmacy",
    "school": "teacher pupil headmaster tutor student | book lesson pencil problem essay | "
    "explain copy solve correct learn | curious bright lazy difficult strict | classroom library playground",
    "market": "merchant customer banker trader beggar | coin basket carpet jewel price | "
    "count order weigh deliver offer | greedy cheap golden rich wary | square bridge warehouse",
}
TOPICS, TENSES, NUMBERS, POLARITIES = (
    tuple(LEXICON),
    ("past", "present", "future"),
    ("one", "many"),
    ("yes", "no"),
)
FACTORS = {"topic": TOPICS, "tense": TENSES, "number": NUMBERS, "polarity": POLARITIES}
_TIMES = {
    "past": ("yesterday", "last week", "long ago", "earlier"),
    "present": ("today", "these days", "nowadays", "at this moment"),
    "future": ("tomorrow", "next week", "some day", "later"),
}
_DETERMINERS = {
    "one": ("the", "this", "every", "another"),
    "many": ("the", "some", "these", "many"),
}
PRONOUN = {"one": "she", "many": "they"}
_MANNERS = ("slowly", "gladly", "quietly", "at once", "with care", "in silence")
_LINKS = ("and", "because", "although", "while", "so", "before")
_MOST_CLAUSES = 3
_TESTED = 1  # the stream of sentences to test on

Symbol = str | tuple[str, ...]  # a word, or a thing to expand with its features
Rules = dict[Symbol, list[tuple[float, tuple[Symbol, ...]]]]


class Expanded(NamedTuple):
    """The words a symbol became, and -log of their probability."""

    words: list[str]
    nats: float


class Drawn(NamedTuple):
    """A sentence, what it is about, and -log of its probability."""

    words: tuple[str, ...]
    factors: tuple[int, ...]  # class numbers in the order of FACTORS
    nats: float


def grammar_sentences(count: int, seed: int = 0, part: Part = "train") -> SentenceDataset:
    """So many sentences with their factors. The first of a larger draw are those of a smaller one.

    The vocabulary is the grammar's own, whatever was drawn.
    """
    if count < 1:
        raise UserError(f"sentences must be 1 or more, got {count}")
    drawn = draw(count, seed, part)
    words = SPECIAL + tuple(
        sorted({word for options in rules().values() for word in _words(options)})
    )
    tokens, lengths, _ = to_numbers([sentence.words for sentence in drawn], words)
    factors = np.array([sentence.factors for sentence in drawn], np.int64)
    source, split = f"drawn from a grammar, seed {seed}", f"{part}: {count:,} sentences"
    return SentenceDataset(
        torch.from_numpy(tokens),
        torch.from_numpy(lengths),
        words,
        source,
        split,
        factors,
        tuple(FACTORS),
    )


def draw(count: int, seed: int = 0, part: Part = "train") -> list[Drawn]:
    """Sentences with what is known of them."""
    random = Random(stream_key(seed, _TESTED if part == "test" else 0))
    return [_draw(random) for _ in range(count)]


def parse(words: Sequence[str]) -> tuple[int, ...] | None:
    """The factors of a sentence, or None where the grammar has no such sentence."""
    table = rules()

    @cache
    def ends(symbol: Symbol, start: int) -> frozenset[int]:
        """Where it may end, if it begins here."""
        if isinstance(symbol, str):
            return frozenset([start + 1] if start < len(words) and words[start] == symbol else [])
        found: set[int] = set()
        for _, right in table[symbol]:
            places = {start}
            for part in right:
                places = {end for place in places for end in ends(part, place)}
            found |= places
        return frozenset(found)

    for factors in product(*(range(len(values)) for values in FACTORS.values())):
        if len(words) in ends(_start(factors), 0):
            return factors
    return None


@cache
def rules() -> Rules:
    """Every rule as (probability, right side)."""
    table: Rules = {}
    for topic, (people, things, verbs, adjectives, places) in _lexicon().items():
        table["adjective", topic] = _any(adjectives)
        table["place", topic] = _any(places)
        for number in NUMBERS:
            table["person", topic, number] = _any([_noun(word, number) for word in people])
            table["thing", topic, number] = _any([_noun(word, number) for word in things])
            for kind in ("person", "thing"):
                table[f"some {kind}", topic, number] = [
                    (0.5, (("determiner", number), (kind, topic, number))),
                    (0.5, (("determiner", number), ("adjective", topic), (kind, topic, number))),
                ]
            for tense, polarity in product(TENSES, POLARITIES):
                forms = [_verb(word, tense, number, polarity) for word in verbs]
                table["verb", topic, tense, number, polarity] = _any(forms)
                _clauses(table, topic, tense, number, polarity)
        table["object", topic] = [(0.5, (("some thing", topic, number),)) for number in NUMBERS]
        table["where", topic] = [
            (0.5, ()),
            *((0.25, (preposition, "the", ("place", topic))) for preposition in ("near", "behind")),
        ]
    for tense in TENSES:
        table["opening", tense] = [
            (0.4, ()),
            *((0.15, (*time.split(), ",")) for time in _TIMES[tense]),
        ]
    for number in NUMBERS:
        table["determiner", number] = _any(_DETERMINERS[number])
    table[("manner",)] = [
        (0.5, ()),
        *((0.5 / len(_MANNERS), tuple(manner.split())) for manner in _MANNERS),
    ]
    table[("link",)] = _any(_LINKS)
    return table


def _clauses(table: Rules, *features: str) -> None:
    """Sentence, main clause, what is done, and the clauses that follow, of one meaning."""
    topic, tense, number, _ = features
    done, person = ("done", *features), ("some person", topic, number)
    table["sentence", *features] = [
        (1.0, (("opening", tense), ("main", *features), ("more 1", *features), "."))
    ]
    table["main", *features] = [(0.7, (person, done)), (0.3, (person, "who", done, ",", done))]
    table[done] = [(1.0, (("verb", *features), ("object", topic), ("where", topic), ("manner",)))]
    for clause in range(1, _MOST_CLAUSES):
        again = (("link",), PRONOUN[number], done, (f"more {clause + 1}", *features))
        table[f"more {clause}", *features] = [(0.5, ()), (0.5, again)]
    table[f"more {_MOST_CLAUSES}", *features] = [(1.0, ())]


def _start(factors: Sequence[int]) -> Symbol:
    return ("sentence", *(values[f] for values, f in zip(FACTORS.values(), factors, strict=True)))


def _draw(random: Random) -> Drawn:
    # random() alone: of Python's generator it is the part that never changes between versions.
    factors = tuple(int(random.random() * len(values)) for values in FACTORS.values())
    words, nats = expand(_start(factors), random)
    return Drawn(tuple(words), factors, math.log(math.prod(map(len, FACTORS.values()))) + nats)


def expand(symbol: Symbol, random: Random) -> Expanded:
    """A symbol by the rules, chosen by chance, until words alone are left."""
    words: list[str] = []
    nats, table, waiting = 0.0, rules(), [symbol]
    while waiting:
        symbol = waiting.pop()
        if isinstance(symbol, str):
            words.append(symbol)
            continue
        probability, right = _choose(table[symbol], random.random())
        nats -= math.log(probability)
        waiting.extend(reversed(right))
    return Expanded(words, nats)


def _choose(
    options: list[tuple[float, tuple[Symbol, ...]]], at: float
) -> tuple[float, tuple[Symbol, ...]]:
    for option in options:
        at -= option[0]
        if at < 0:
            return option
    return options[-1]


def _any(choices: Sequence[str]) -> list[tuple[float, tuple[Symbol, ...]]]:
    """One of these, all equally likely; a choice may be several words."""
    return [(1 / len(choices), tuple(choice.split())) for choice in choices]


def _words(options: list[tuple[float, tuple[Symbol, ...]]]) -> list[str]:
    return [symbol for _, right in options for symbol in right if isinstance(symbol, str)]


def _lexicon() -> dict[str, list[list[str]]]:
    return {
        topic: [group.split() for group in groups.split("|")] for topic, groups in LEXICON.items()
    }


def _noun(word: str, number: str) -> str:
    return word if number == "one" else _with_s(word)


def _verb(word: str, tense: str, number: str, polarity: str) -> str:
    """stirred, did not stir; stirs, does not stir; stir, do not stir; will stir, will not stir."""
    if tense == "future":
        return f"will {word}" if polarity == "yes" else f"will not {word}"
    if polarity == "no":
        return {"past": "did", "present": "does" if number == "one" else "do"}[
            tense
        ] + f" not {word}"
    if tense == "past":
        return _with_ed(word)
    return _with_s(word) if number == "one" else word


def _with_s(word: str) -> str:
    if word.endswith(("ch", "sh", "s", "x")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _with_ed(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    if word == "stir":
        return "stirred"
    return word[:-1] + "ied" if word.endswith("y") and word[-2] not in "aeiou" else word + "ed"


SOURCE = Source(
    "grammar",
    Grammar,
    lambda settings, root: grammar_sentences(settings.sentences, part=settings.split),
    about="sentences drawn from a small grammar: 392 words, topic 8, tense 3, number 2, polarity 2",
    test=lambda settings, root: replace(
        settings, split="test", sentences=min(settings.sentences, 2_000)
    ),
)
