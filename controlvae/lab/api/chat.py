"""Conversations with a dialog model: several responses to each line, each from a prior code."""

import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.text.dialog_file import split_words
from controlvae.lab.data.text.dialogs import DialogDataset, Utterance
from controlvae.lab.data.text.vocabulary import BOS, PAD, UNK
from controlvae.lab.evaluation.dialog import respond
from controlvae.lab.runs.loaded import LoadedRun

_BANNED_TOKENS = (PAD, BOS, UNK)
_BATCH = 16  # responses per batch: a fixed size makes the first ones the same for any count


class Reply(NamedTuple):
    """Responses to one line."""

    responses: list[str]
    unknown_words: list[str]  # of the line


def chat(
    run: LoadedRun,
    lines: Iterable[str],
    *,
    count: int = 5,
    temperature: float = 0.0,
    topic: str = "",
    seed: int = 0,
) -> Iterator[Reply]:
    """Respond to lines of a conversation.

    Earlier lines are the context. The first response to each line counts as the model's turn.

    Args:
        run: Run over dialogs.
        lines: Lines of the user. Empty ones are skipped.
        count: Number of responses to each line.
        temperature: Temperature of the words. Zero takes the likeliest, as the paper does.
        topic: Topic of the conversation, one of those in the training data.
        seed: Seed of the codes.

    Yields:
        The responses to each line.

    Raises:
        UserError: If the run is not over dialogs, or the topic is unknown.
    """
    examples = run.examples
    if not isinstance(examples, DialogDataset):
        raise UserError(
            f"{run.folder.path} is not a model of dialogs; train one with: "
            "controlvae train dialog-quick"
        )
    _check_topic(run, examples, topic)
    vocabulary, history = set(examples.vocabulary), list[Utterance]()
    for turn, line in enumerate(lines):
        words = split_words(line)
        if not words:
            continue
        history.append(Utterance(0, words))
        context, key = examples.make_context(history, topic), stream_key(seed, turn)
        responses: list[str] = []
        for number in range(-(-count // _BATCH)):
            [batch] = respond(
                run,
                context,
                _BATCH,
                seed=stream_key(key, number),
                temperature=temperature,
                banned=_BANNED_TOKENS,
            )
            responses += batch
        unknown_words = [word for word in dict.fromkeys(words) if word not in vocabulary]
        yield Reply(responses[:count], unknown_words)
        history.append(Utterance(1, responses[0].split()))


def read_lines() -> Iterator[str]:
    """Yield lines of standard input, with a prompt in a terminal.

    Raises:
        UserError: If a file or pipe is not UTF-8 text.
    """
    if not sys.stdin.isatty():
        try:
            yield from sys.stdin
        except UnicodeDecodeError as error:
            raise UserError(f"the input is not UTF-8 text: {error}") from None
        return
    print("Type a line; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return


def _check_topic(run: LoadedRun, examples: DialogDataset, topic: str) -> None:
    if topic in examples.names.topics:
        return
    topics = [name for name in examples.names.topics if name]
    if not topics:
        raise UserError(f"{run.folder.path} has no topics; remove --topic")
    raise unknown_name_error("topic", topic, topics)
