"""Claim files: what is in them, creating them exactly once, and observing that one is renewed.

Two operations of the file system are relied on: `link` to a name fails if the name exists, and what
a process has written and closed is read by one that opens the file afterwards. NFS guarantees both.
Where a file system has no hard links, `O_EXCL` takes the place of `link`.
"""

import contextlib
import json
import os
import re
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

LEASE_SECONDS = 60.0
_RECORD_BYTES = 512  # of a claim, so that a renewal replaces all of it in one write
_FILES_KEPT = 16  # a process that reads a claim must not find the next number free again
_TEMPORARY = ".part-claim-"


@dataclass(frozen=True)
class ClaimRecord:
    """Content of a claim file.

    Attributes:
        machine: Name of the owner's machine and of its boot.
        process: Process number on that machine.
        held: False once the owner has released the run.
        lease: Seconds without a change after which others may take over.
        renewals: Number that the owner counts up.
        step: Newest step, for display.
        speed: Steps per second, for display.
    """

    machine: str
    process: int
    held: bool = True
    lease: float = LEASE_SECONDS
    renewals: int = 0
    step: int = 0
    speed: float = 0.0

    @property
    def host(self) -> str:
        """Name of the owner's machine."""
        return self.machine.partition(" ")[0]


def read_claim(folder: Path) -> ClaimRecord | None:
    """Return the newest claim in a folder, or None if there is none that can be read."""
    return parse_claim(newest_claim(folder)[1])


def may_take_over(folder: Path) -> bool:
    """Return True if the run was released, or its owner's lease has ended before our eyes.

    The first call for a claim starts the observation, so call again later.
    """
    number, content = newest_claim(folder)
    record = parse_claim(content)
    if number == 0 or (record is not None and not record.held):
        return True
    seen = _observe(folder, number, content)
    return time.monotonic() - seen.since > lease_of(record)


def shows_life(record: ClaimRecord, path: Path, now: float) -> bool:
    """Return True if a claim was renewed within its lease, for display.

    Args:
        record: A claim.
        path: Folder of the claims.
        now: Time of the file server, as `server_time` returns it.
    """
    with contextlib.suppress(OSError):
        changed = claim_file(path, newest_claim(path)[0]).stat().st_mtime
        return record.held and now - changed < record.lease
    return False


def server_time(folder: Path) -> float:
    """Return the time of the machine that stores a folder, for comparison with its files."""
    probe = folder / f"{_TEMPORARY}{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # read-only
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def describe_owner(record: ClaimRecord | None) -> str:
    """Return the owner of a claim in words."""
    if record is None:
        return "another machine"
    return f"{record.host} (process {record.process})"


@cache
def this_machine() -> str:
    """Return a name of this machine that changes when it restarts.

    Containers of one machine share the boot and differ in the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        boot = f"{uuid.getnode():x}"
    return f"{socket.gethostname()[:64]} {boot}"


@dataclass(frozen=True)
class _Observation:
    """A claim as it was first read."""

    number: int
    content: bytes
    since: float  # by the monotonic clock of this process


_OBSERVED: dict[Path, _Observation] = {}


def _observe(folder: Path, number: int, content: bytes) -> _Observation:
    """Return since when a claim has looked as it does."""
    seen = _OBSERVED.get(folder)
    if seen is None or (seen.number, seen.content) != (number, content):
        seen = _OBSERVED[folder] = _Observation(number, content, time.monotonic())
    return seen


def claim_file(folder: Path, number: int) -> Path:
    """Return the path of a claim file."""
    return folder / f"{number:06d}"


def newest_claim(folder: Path) -> tuple[int, bytes]:
    """Return number and content of the newest claim file. Number 0 means that there is none."""
    try:
        numbers = [int(name) for name in os.listdir(folder) if re.fullmatch(r"\d{6,}", name)]
    except (FileNotFoundError, NotADirectoryError):
        return 0, b""
    if not numbers:
        return 0, b""
    try:
        return max(numbers), claim_file(folder, max(numbers)).read_bytes()
    except OSError:
        return max(numbers), b""


def parse_claim(content: bytes) -> ClaimRecord | None:
    """Return the content of a claim, or None if it was read while it was written."""
    try:
        values: dict[str, Any] = json.loads(content)
        return ClaimRecord(**values)
    except (ValueError, TypeError):
        return None


def encode_claim(record: ClaimRecord) -> bytes:
    """Return the content of a claim file, always of the same length."""
    return json.dumps(asdict(record)).encode().ljust(_RECORD_BYTES - 1) + b"\n"


def create_claim(folder: Path, number: int, record: ClaimRecord) -> bool:
    """Create a claim file with its whole content, unless there is one.

    Args:
        folder: Folder of the claims of one run.
        number: Number of the claim file.
        record: Its content.

    Returns:
        True if this process has created the file.
    """
    temporary = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        _write_new(temporary, record)
        try:
            os.link(temporary, claim_file(folder, number))
        except FileExistsError:
            # The answer to a link that succeeded may be lost, and the repeated request fails.
            return temporary.stat().st_nlink == 2
        except OSError:  # no hard links
            with contextlib.suppress(FileExistsError):
                _write_new(claim_file(folder, number), record)
                return True
            return False
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _write_new(path: Path, record: ClaimRecord) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        os.write(handle, encode_claim(record))
        os.fsync(handle)
    finally:
        os.close(handle)


def prune_claims(folder: Path, newest: int) -> None:
    """Delete claims that no process can still be about to follow."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if re.fullmatch(r"\d{6,}", name) and int(name) <= newest - _FILES_KEPT:
                (folder / name).unlink(missing_ok=True)


def lease_of(record: ClaimRecord | None) -> float:
    """Return the lease of a claim in seconds."""
    return LEASE_SECONDS if record is None else record.lease
