"""`chat`: a line is typed, and several responses come back, each from a code drawn from the prior."""

import sys
from collections.abc import Iterator

import typer

from controlvae.errors import UserError, unknown
from controlvae.lab.cli.runs import name_unknown
from controlvae.lab.data.dataset import stream_key
from controlvae.lab.data.text.dialogs import DialogDataset, Utterance
from controlvae.lab.data.text.switchboard import words_of
from controlvae.lab.data.text.vocabulary import BOS, PAD, UNK
from controlvae.lab.evaluation.dialog import respond
from controlvae.lab.runs.loaded import LoadedRun

_NO_WORDS = (PAD, BOS, UNK)  # never said
_TOGETHER = 16  # responses made at once, however few are asked for: the first ones are the same for any number


def chat(run: LoadedRun, count: int, temperature: float, topic: str, seed: int) -> None:
    """Until there are no more lines. What was said before is the context; of the responses the first counts as said."""
    if not isinstance(run.examples, DialogDataset):
        raise UserError(
            f"{run.folder.path} is no model of dialogs; one would be: controlvae train dialog-quick"
        )
    if topic not in run.examples.names.topics:
        topics = [name for name in run.examples.names.topics if name]
        raise (
            unknown("topic", topic, topics)
            if topics
            else UserError(f"{run.folder.path} knows no topics: no --topic")
        )
    known, said = set(run.examples.vocabulary), []
    for turn, line in enumerate(_lines()):
        words = words_of(line)
        if not words:
            continue
        name_unknown([word for word in dict.fromkeys(words) if word not in known])
        said.append(Utterance(0, words))
        context, key, responses = run.examples.ask(said, topic), stream_key(seed, turn), list[str]()
        for number in range(-(-count // _TOGETHER)):
            [more] = respond(
                run,
                context,
                _TOGETHER,
                seed=stream_key(key, number),
                temperature=temperature,
                banned=_NO_WORDS,
            )
            responses += more
        for number, response in enumerate(responses[:count], start=1):
            typer.echo(f"{number:3d}  {response or '...'}")
        said.append(Utterance(1, responses[0].split()))


def _lines() -> Iterator[str]:
    """From a person, with a prompt, or from a file or a pipe."""
    if not sys.stdin.isatty():
        try:
            yield from sys.stdin
        except UnicodeDecodeError as error:
            raise UserError(f"what was given is not UTF-8 text: {error}") from None
        return
    typer.echo("Type a line; Ctrl-D ends.", err=True)
    while True:
        try:
            yield input("> ")
        except EOFError:
            typer.echo(err=True)
            return
