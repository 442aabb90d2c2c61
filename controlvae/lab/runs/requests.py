"""What a person asks of a run while it trains: a file in its folder, taken up by training and answered by an event."""

import json

from controlvae.errors import UserError
from controlvae.lab.io import write_text
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws import Law
from controlvae.laws.base import Feedback


def ask_target(folder: RunFolder, target: object) -> None:
    """Asks for another set point; a run that is not in training takes it up when it is resumed."""
    if folder.ended():
        raise UserError(f"{folder.path} has ended; there is no training left to move its target in")
    try:
        target_in(_request(target), folder.experiment().control)
    except ValueError as error:
        raise UserError(str(error)) from None
    ask_again(folder, target)


def ask_again(folder: RunFolder, target: object) -> None:
    """Asks for a set point that training has taken up before."""
    write_text(folder.asked_file, _request(target))


def asked(folder: RunFolder) -> str | None:
    """What is asked and not answered yet, as it was written."""
    try:
        return folder.asked_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def target_in(text: str, law: Law) -> float:
    """The set point that is asked for; ValueError where it is none for this law."""
    if not isinstance(law, Feedback):
        raise ValueError(f"{law} is open-loop: it has no target to move")
    content = json.loads(text, parse_int=float)
    target = content.get("target") if isinstance(content, dict) else None
    if not isinstance(target, float):
        raise ValueError(f"a target is a number of nats, got {target!r}")
    law.check_target(target)
    return target


def _request(target: object) -> str:
    return json.dumps({"target": target}) + "\n"


def answer(folder: RunFolder, text: str) -> None:
    """It was taken up; what has been asked since stays."""
    if asked(folder) == text:
        folder.asked_file.unlink(missing_ok=True)
