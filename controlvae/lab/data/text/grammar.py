"""Sentences drawn from a probabilistic grammar, for tests and quick runs without files.

Every sentence has a topic, a tense, a number and a polarity. They determine its nouns, verbs,
adjectives, verb forms and pronouns: log(8 x 3 x 2 x 2) = 4.56 nats of information for a latent
code. But a decoder that sees the preceding words learns them from the first few, and tends to
ignore the code: the collapse that the paper is about, on a small scale. A sentence has one
derivation, so its probability, and with it the best possible NLL, is known.
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
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.splits import TrainTest
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.data.text.vocabulary import SPECIAL_TOKENS, encode_sentences

# People, things, regular verbs, adjectives and places of each topic. No word has two topics.
LEXICON = {
    "kitchen": "cook baker waiter guest butcher | soup cake onion pepper carrot | "
    "stir taste boil roast season | spicy salty hungry warm sweet | oven table cellar",
    "sea": "sailor captain pirate diver admiral | anchor sail rope lantern compass | "
    "hoist repair follow mend lower | stormy salted brave rusty seasick | "
    "harbour island lighthouse",
    "garden": "gardener neighbour florist beekeeper farmer | rose hedge apple seed melon | "
    "plant water prune pick rake | green muddy patient thorny ripe | fence pond greenhouse",
    "music": "singer drummer pianist conductor composer | song violin melody trumpet chord | "
    "play record rehearse tune compose | loud gentle famous rhythmic shy | stage concert studio",
    "court": "judge lawyer witness clerk juror | verdict document question crime contract | "
    "examine sign reject discuss recall | honest guilty solemn legal stern | "
    "courtroom archive office",
    "hospital": "doctor nurse midwife surgeon visitor | bandage needle pill chart wound | "
    "clean measure treat inspect cover | tired careful pale sterile young | ward clinic pharmacy",
    "school": "teacher pupil headmaster tutor student | book lesson pencil problem essay | "
    "explain copy solve correct learn | curious bright lazy difficult strict | "
    "classroom library playground",
    "market": "merchant customer banker trader beggar | coin basket carpet jewel price | "
    "count order weigh deliver offer | greedy cheap golden rich wary | square bridge warehouse",
}
TOPICS = tuple(LEXICON)
TENSES = ("past", "present", "future")
NUMBERS = ("one", "many")
POLARITIES = ("yes", "no")
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
_MAX_CLAUSES = 3
_TRAIN_STREAM, _TEST_STREAM = 0, 1

Symbol = str | tuple[str, ...]  # a word, or a nonterminal with its features
Alternative = tuple[float, tuple[Symbol, ...]]  # probability and right-hand side
Rules = dict[Symbol, list[Alternative]]


class Expansion(NamedTuple):
    """Words derived from a symbol, and the negative logarithm of their probability."""

    words: list[str]
    nats: float


class GrammarSentence(NamedTuple):
    """A sentence, its factors, and the negative logarithm of its probability."""

    words: tuple[str, ...]
    factors: tuple[int, ...]  # class numbers in the order of FACTORS
    nats: float


def grammar_dataset(count: int, seed: int = 0, split: TrainTest = "train") -> SentenceDataset:
    """Draw a data set of sentences with their factors. Its vocabulary is that of the grammar.

    Args:
        count: The number of sentences.
        seed: The seed of the random numbers.
        split: "train" or "test", which are independent.
    """
    if count < 1:
        raise UserError(f"sentences must be 1 or more, got {count}")
    sentences = draw_sentences(count, seed, split)
    terminals = {word for options in grammar_rules().values() for word in _terminals(options)}
    words = SPECIAL_TOKENS + tuple(sorted(terminals))
    tokens, lengths, _ = encode_sentences([sentence.words for sentence in sentences], words)
    return SentenceDataset(
        torch.from_numpy(tokens),
        torch.from_numpy(lengths),
        words,
        f"drawn from a grammar, seed {seed}",
        f"{split}: {count:,} sentences",
        np.array([sentence.factors for sentence in sentences], np.int64),
        tuple(FACTORS),
    )


def draw_sentences(count: int, seed: int = 0, split: TrainTest = "train") -> list[GrammarSentence]:
    """Draw sentences. A smaller draw is the start of a larger one.

    Args:
        count: The number of sentences.
        seed: The seed of the random numbers.
        split: "train" or "test", which are independent.
    """
    random = Random(stream_key(seed, _TEST_STREAM if split == "test" else _TRAIN_STREAM))
    return [_draw_sentence(random) for _ in range(count)]


def parse_factors(words: Sequence[str]) -> tuple[int, ...] | None:
    """Return the factors of a sentence, or None if the grammar does not generate it."""
    table = grammar_rules()

    @cache
    def ends(symbol: Symbol, start: int) -> frozenset[int]:
        """Return the positions where a symbol that begins at `start` may end."""
        if isinstance(symbol, str):
            return frozenset([start + 1] if start < len(words) and words[start] == symbol else [])
        positions: set[int] = set()
        for _, right_side in table[symbol]:
            reached = {start}
            for part in right_side:
                reached = {end for position in reached for end in ends(part, position)}
            positions |= reached
        return frozenset(positions)

    for factors in product(*(range(len(values)) for values in FACTORS.values())):
        if len(words) in ends(_start_symbol(factors), 0):
            return factors
    return None


@cache
def grammar_rules() -> Rules:
    """Return the alternatives of every nonterminal."""
    table: Rules = {}
    for topic, (people, things, verbs, adjectives, places) in _lexicon().items():
        table["adjective", topic] = _uniform(adjectives)
        table["place", topic] = _uniform(places)
        for number in NUMBERS:
            table["person", topic, number] = _uniform([_noun(word, number) for word in people])
            table["thing", topic, number] = _uniform([_noun(word, number) for word in things])
            for kind in ("person", "thing"):
                table[f"some {kind}", topic, number] = [
                    (0.5, (("determiner", number), (kind, topic, number))),
                    (0.5, (("determiner", number), ("adjective", topic), (kind, topic, number))),
                ]
            for tense, polarity in product(TENSES, POLARITIES):
                forms = [_verb(word, tense, number, polarity) for word in verbs]
                table["verb", topic, tense, number, polarity] = _uniform(forms)
                _add_clauses(table, topic, tense, number, polarity)
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
        table["determiner", number] = _uniform(_DETERMINERS[number])
    table[("manner",)] = [
        (0.5, ()),
        *((0.5 / len(_MANNERS), tuple(manner.split())) for manner in _MANNERS),
    ]
    table[("link",)] = _uniform(_LINKS)
    return table


def _add_clauses(table: Rules, *features: str) -> None:
    """Add the rules of sentences with these factors: main clause, predicate, further clauses."""
    topic, tense, number, _ = features
    predicate, person = ("predicate", *features), ("some person", topic, number)
    table["sentence", *features] = [
        (1.0, (("opening", tense), ("main", *features), ("more 1", *features), "."))
    ]
    table["main", *features] = [
        (0.7, (person, predicate)),
        (0.3, (person, "who", predicate, ",", predicate)),
    ]
    table[predicate] = [
        (1.0, (("verb", *features), ("object", topic), ("where", topic), ("manner",)))
    ]
    for clause in range(1, _MAX_CLAUSES):
        another = (("link",), PRONOUN[number], predicate, (f"more {clause + 1}", *features))
        table[f"more {clause}", *features] = [(0.5, ()), (0.5, another)]
    table[f"more {_MAX_CLAUSES}", *features] = [(1.0, ())]


def _start_symbol(factors: Sequence[int]) -> Symbol:
    return ("sentence", *(values[f] for values, f in zip(FACTORS.values(), factors, strict=True)))


def _draw_sentence(random: Random) -> GrammarSentence:
    # Only random() is used: its numbers are the same in every version of Python.
    factors = tuple(int(random.random() * len(values)) for values in FACTORS.values())
    words, nats = expand_symbol(_start_symbol(factors), random)
    factor_nats = math.log(math.prod(map(len, FACTORS.values())))
    return GrammarSentence(tuple(words), factors, factor_nats + nats)


def expand_symbol(symbol: Symbol, random: Random) -> Expansion:
    """Expand a symbol by randomly chosen rules until only words are left."""
    words: list[str] = []
    nats, table, pending = 0.0, grammar_rules(), [symbol]
    while pending:
        symbol = pending.pop()
        if isinstance(symbol, str):
            words.append(symbol)
            continue
        probability, right_side = _choose(table[symbol], random.random())
        nats -= math.log(probability)
        pending.extend(reversed(right_side))
    return Expansion(words, nats)


def _choose(options: list[Alternative], uniform: float) -> Alternative:
    for option in options:
        uniform -= option[0]
        if uniform < 0:
            return option
    return options[-1]


def _uniform(choices: Sequence[str]) -> list[Alternative]:
    """Return equally likely alternatives; a choice may consist of several words."""
    return [(1 / len(choices), tuple(choice.split())) for choice in choices]


def _terminals(options: list[Alternative]) -> list[str]:
    return [symbol for _, right in options for symbol in right if isinstance(symbol, str)]


def _lexicon() -> dict[str, list[list[str]]]:
    return {
        topic: [group.split() for group in groups.split("|")] for topic, groups in LEXICON.items()
    }


def _noun(word: str, number: str) -> str:
    return word if number == "one" else _with_s(word)


def _verb(word: str, tense: str, number: str, polarity: str) -> str:
    """Return a verb form: "stirred", "did not stir", "stirs", "does not stir", "will stir"."""
    if tense == "future":
        return f"will {word}" if polarity == "yes" else f"will not {word}"
    if polarity == "no":
        present = "does" if number == "one" else "do"
        return f"{'did' if tense == 'past' else present} not {word}"
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


SPECS = [
    DatasetSpec(
        "grammar",
        Grammar,
        lambda settings, root: grammar_dataset(settings.sentences, split=settings.split),
        about="sentences drawn from a small grammar: 392 words, 8 topics, 3 tenses, 2 numbers, "
        "2 polarities",
        test_settings=lambda settings, root: replace(
            settings, split="test", sentences=min(settings.sentences, 2_000)
        ),
    )
]
