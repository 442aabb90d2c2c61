"""Claims of run folders: one process trains a run, also among machines that share the folder.

A claim is a numbered file in `claims/`. Whoever creates the next number owns the run.

The owner counts up a number in its claim. Another process takes over when it has seen no change for
the length of the lease, measured by its own clock. Clocks of machines are never compared.
"""

import contextlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

from controlvae.errors import RunError, UserError
from controlvae.lab.runs.claim_files import (
    LEASE_SECONDS,
    ClaimRecord,
    claim_file,
    create_claim,
    describe_owner,
    encode_claim,
    lease_of,
    may_take_over,
    newest_claim,
    parse_claim,
    prune_claims,
    this_machine,
)

LEASE_VARIABLE = "CONTROLVAE_LEASE"  # seconds, for tests and for slow file systems
_RENEWALS_PER_LEASE = 6


class RunInUseError(UserError):
    """Another process trains the run."""


class Claim:
    """Claim of a run folder by this process, renewed in the background until it is released.

    Args:
        folder: Folder of the claims of one run.
        number: Number of the claim file.
        record: Its content.
    """

    def __init__(self, folder: Path, number: int, record: ClaimRecord) -> None:
        self.folder, self.number, self.record = folder, number, record
        self.lost = False
        self._renewed = _uptime()
        self._lock = threading.Lock()

    @classmethod
    def acquire(cls, folder: Path, same_machine_ended: bool = False) -> "Claim":
        """Claim a run, or raise RunInUseError as soon as its owner shows a sign of life.

        If the owner shows none, this waits for the end of its lease.

        Args:
            folder: Folder of the claims of one run.
            same_machine_ended: An owner on this machine is known to have ended.
        """
        folder.mkdir(parents=True, exist_ok=True)
        first: bytes | None = None
        while True:
            number, content = newest_claim(folder)
            record = parse_claim(content)
            own = same_machine_ended and record is not None and record.machine == this_machine()
            if not (number == 0 or own or may_take_over(folder)):
                if first not in (None, content):
                    owner = describe_owner(record)
                    raise RunInUseError(f"{folder.parent} is being trained on {owner}")
                first = content
                time.sleep(min(0.5, lease_of(record) / 20))
                continue
            mine = ClaimRecord(this_machine(), os.getpid(), lease=_lease_seconds())
            if not create_claim(folder, number + 1, mine):
                continue  # another process was faster: its claim is looked at next
            claim = cls(folder, number + 1, mine)
            if newest_claim(folder)[0] > claim.number:  # what was read was very old
                continue
            prune_claims(folder, claim.number)
            _HEARTBEAT.add(claim)
            return claim

    def report(self, step: int, speed: float) -> None:
        """Note the progress that the next renewal shows to others."""
        self.record = replace(self.record, step=step, speed=speed)

    def confirm(self) -> None:
        """Raise RunError if another process may have taken over. Called before every write."""
        if not self.lost and _uptime() - self._renewed > self.record.lease / 2:
            self.renew()
        if self.lost:
            raise RunError(
                f"{self.folder.parent} was taken over by another process, because this one did not "
                f"run for {self.record.lease:g} s; the other one continues from the last checkpoint"
            )

    def renew(self) -> None:
        """Show that this process is alive, and find out if another one has taken over.

        After a long pause the claim is not renewed but made again under the next number. That fails
        if another process was faster, whatever this machine has cached of the folder.
        """
        with self._lock, contextlib.suppress(OSError):
            forked = self.record.process != os.getpid()
            if self.lost or forked or not self.record.held:
                return
            began = _uptime()
            self.record = replace(self.record, renewals=self.record.renewals + 1)
            if began - self._renewed > self.record.lease / 2:
                self.lost = not create_claim(self.folder, self.number + 1, self.record)
                self.number += not self.lost
            else:
                self._write()
                self.lost = newest_claim(self.folder)[0] > self.number
            self._renewed = began

    def release(self) -> None:
        """Let other processes claim the run at once."""
        _HEARTBEAT.remove(self)
        with self._lock, contextlib.suppress(OSError):
            self.record = replace(self.record, held=False)
            if not self.lost:
                self._write()

    def _write(self) -> None:
        try:
            with claim_file(self.folder, self.number).open("r+b", buffering=0) as file:
                file.write(encode_claim(self.record))
        except FileNotFoundError:  # the run was deleted
            self.lost = True


def _lease_seconds() -> float:
    """Return the lease of claims of this process."""
    text = os.environ.get(LEASE_VARIABLE, "")
    try:
        seconds = float(text or LEASE_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 86_400:
        raise UserError(f"{LEASE_VARIABLE} takes seconds from 0.5 to 86400, got {text!r}")
    return seconds


def _uptime() -> float:
    """Return seconds that pass also while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class _Heartbeat:
    """Renews the claims of this process in one background thread."""

    def __init__(self) -> None:
        self._claims: set[Claim] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, claim: Claim) -> None:
        """Renew a claim from now on."""
        with self._changed:
            self._claims.add(claim)
            if self._thread is None or not self._thread.is_alive():  # also in a forked process
                self._thread = threading.Thread(target=self._beat, daemon=True, name="claims")
                self._thread.start()
            self._changed.notify()

    def remove(self, claim: Claim) -> None:
        """Renew a claim no longer."""
        with self._changed:
            self._claims.discard(claim)
            self._changed.notify()

    def _beat(self) -> None:
        while True:
            with self._changed:
                if not self._claims:
                    self._thread = None
                    return
                interval = min(claim.record.lease for claim in self._claims) / _RENEWALS_PER_LEASE
                self._changed.wait(interval)
                claims = list(self._claims)
            for claim in claims:
                claim.renew()


_HEARTBEAT = _Heartbeat()
