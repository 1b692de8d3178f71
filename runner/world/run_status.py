"""The status of a run, for the process that started its ranks: completion record, first failure, PID map.

A launcher's exit status is not reliable: Open MPI has returned 0 after losing a host, and MPICH after one
rank exited early. A run has succeeded when rank 0 has written the completion record, which it does last. The
first failure is a file that only the first failing rank can create.

Ranks on this machine write to a private directory (`RunDirectory`). Ranks on other hosts cannot, and print
lines to stderr that the starting process picks out of their output (`RunLines`). Uses the standard library
only, because the `meshrun` command reads the status in the process that starts the ranks.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meshrun.runner import files, lock
from meshrun.runner.errors import UserError
from meshrun.runner.system.launcher import temporary_folder

CLAIMED = 60.0  # seconds after which every rank of a run that fails has found its host's claim
NOTE_BYTES = 1 << 16  # most of a note of a lost host that are read
LINE = "\x1emeshrun-run"  # starts a status line; no program prints it otherwise


class RunStatus(Protocol):
    """What ranks report to the process that started them."""

    def begin(self, rank: int, host: str, pid: int) -> None:
        """Report that a rank runs, before it meets the others in MPI."""

    def register(self, rank: int, host: str, pid: int) -> None:
        """Map a process to its rank, so that a launcher's "PID 4711 was killed" gets a name.

        It is connected to the others.
        """

    def note_partial(self, *outputs: Path) -> None:
        """Name the partial outputs to remove if every rank is killed."""

    def note_lock(self, *outputs: Path) -> None:
        """Name the outputs that this run has locked, to unlock if every rank is killed."""

    def note_recovery_hint(self, hint: str) -> None:
        """Set the text to print after a failure, such as how to resume the run; "": nothing."""

    def note_kept(self) -> None:
        """Note that files stay if the run fails, such as frames: unless resumed, they are another run's."""

    def note_exit_status(self, status: int) -> None:
        """Set the exit status, instead of 1, of a run whose ranks end without reporting a failure."""

    def save_answer(self, answer: str) -> bool:
        """Save the partial result of a command that must print one, in case rank 0 dies first; "": printed.

        Returns False if `answer` is too long to be sent.
        """

    def claim_failure(self, failure: dict[str, Any]) -> bool:
        """Record `failure` if it is the first on this host; False if another one came first."""

    def suppress_failures(self) -> bool:
        """Ignore failures from now on, because this host's ranks are being terminated.

        Returns False if a failure has already been recorded.
        """

    def remove_claim(self) -> None:
        """Remove this host's claim if nobody else does; called by the rank that made it."""

    def complete(self, record: dict[str, Any]) -> None:
        """Write the completion record; rank 0's last act."""


def lost_note(job: str) -> Path:
    """The file in a Slurm job's working directory in which ranks report a lost host.

    Their output goes through the job's first host, which may be the lost one.
    """
    return Path(f"meshrun-{job}.lost")


def signed_note(job: str, sentence: str, token: str | None) -> str:
    """The text of the note of job `job`. token: the run's, which proves that the note is of one of its
    ranks; None if no process reads it."""
    proof = f"{_note_proof(job, sentence, token)}\n" if token else ""
    return f"meshrun: {sentence}\n{proof}"


def read_lost_note(job: str, token: str) -> str | None:
    """The sentence of the note of job `job`, which is removed; None without one.

    Others may write to the working directory: a note that is a link, is of another user, or does not have the
    proof of this run is ignored and stays.
    """
    note = lost_note(job)
    try:
        files.check_own(note, folder=False, hint="")
        with files.open_file(note) as file:
            text = file.read(NOTE_BYTES) or b""
    except (OSError, UserError):
        return None
    lines = text.decode(errors="replace").splitlines()
    sentence = lines[0].removeprefix("meshrun: ") if lines else ""
    if len(lines) != 2 or not hmac.compare_digest(
        lines[1].encode(), _note_proof(job, sentence, token).encode()
    ):
        return None
    note.unlink(missing_ok=True)
    return sentence


def _note_proof(job: str, sentence: str, token: str) -> str:
    return hmac.digest(token.encode(), f"{job}\0{sentence}".encode(), "sha256").hex()


def run_at(place: str) -> RunStatus:
    """The status of the run at `run_dir`: a directory, or "@TOKEN" for lines on stderr."""
    return RunLines(place[1:]) if place.startswith("@") else RunDirectory(Path(place))


@dataclass(frozen=True)
class RunDirectory:
    """Run status in a private directory that every rank on this machine can write to."""

    path: Path

    @classmethod
    def create(cls) -> RunDirectory:
        remove_stale_claims()
        return cls(lock.private_folder("run"))

    def begin(self, rank: int, host: str, pid: int) -> None:
        self._note_process("begun", rank, host, pid)

    def register(self, rank: int, host: str, pid: int) -> None:
        self._note_process("pid", rank, host, pid)

    def _note_process(self, kind: str, rank: int, host: str, pid: int) -> None:
        files.write_file(self.path / f"{kind}-{pid}@{host}", json.dumps({"rank": rank, "host": host}))

    def ranks(self, kind: str) -> dict[int, dict[str, Any]]:
        """Rank, host and pid of the ranks that have begun ("begun") or are connected ("pid"), by rank."""
        found = {}
        for path in self.path.glob(f"{kind}-*"):
            pid = int(path.name.partition("@")[0][len(kind) + 1 :])
            if one := _read(path):
                found[int(one["rank"])] = {**one, "pid": pid}
        return found

    def any_registered(self) -> bool:
        """Whether any rank has registered."""
        return any(self.path.glob("pid-*"))

    def rank_of(self, pid: int, host: str | None = None) -> dict[str, Any] | None:
        """The rank and host of process `pid`; None if unknown, or if several hosts have such a process.

        host: as the launcher names it, with or without its domain.
        """
        known = [_read(path) for path in self.path.glob(f"pid-{pid}@*")]
        named = [one for one in known if one and _short(one["host"]) == _short(host or "")]
        found = named or known
        return found[0] if len(found) == 1 else None

    def note_partial(self, *outputs: Path) -> None:
        if outputs:
            files.write_file(self.path / "partial", _joined(outputs))
        else:
            (self.path / "partial").unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove the partial outputs and the locks that killed ranks have left."""
        note = self.path / "partial"
        if note.exists():
            for partial in _split(_text(note)):
                files.remove_path(partial)
        held = self.path / "held"
        if held.exists():
            for output in _split(_text(held)):
                with contextlib.suppress(OSError):
                    _unlock(output)

    def note_lock(self, *outputs: Path) -> None:
        files.write_file(self.path / "held", _joined(outputs))

    def note_recovery_hint(self, hint: str) -> None:
        files.write_file(self.path / "words", hint)

    def recovery_hint(self) -> str:
        """What to print if the run has failed; "" for nothing."""
        note = self.path / "words"
        return _text(note) if note.exists() else ""

    def note_kept(self) -> None:
        files.write_file(self.path / "kept", "")

    def keeps_files(self) -> bool:
        """Whether files stay if the run fails, so that it is resumed if it is started again."""
        return (self.path / "kept").exists()

    def note_exit_status(self, status: int) -> None:
        files.write_file(self.path / "status", str(status))

    def exit_status(self) -> int:
        """The exit status of a run that has failed without any rank reporting why."""
        note = self.path / "status"
        return int(note.read_text()) if note.exists() else 1

    def save_answer(self, answer: str) -> bool:
        files.write_file(self.path / "answer", answer)
        return True

    def answer(self) -> str | None:
        """The last saved answer; None without one."""
        note = self.path / "answer"
        return _text(note) if note.exists() else None

    def claim_failure(self, failure: dict[str, Any]) -> bool:
        return claim(self.path / "failure.json", failure)

    def report_failure(self, failure: dict[str, Any]) -> None:
        """Record `failure`, unless there is one; also if terminated ranks have suppressed failures."""
        if not self.claim_failure(failure) and self.failure() is None:
            files.write_file(self.path / "failure.json", json.dumps({"time": time.time(), **failure}))

    def suppress_failures(self) -> bool:
        return claim(self.path / "failure.json", {})

    def remove_claim(self) -> None:
        """Do nothing: the directory is removed as a whole."""

    def failure(self) -> dict[str, Any] | None:
        """The first failure; None if none was recorded before the ranks were terminated."""
        found = _read(self.path / "failure.json") or {}
        return found if "sentence" in found else None

    def complete(self, record: dict[str, Any]) -> None:
        files.write_file(self.path / "record.json", json.dumps(record))

    def record(self) -> dict[str, Any] | None:
        return _read(self.path / "record.json")

    def read_line(self, line: str) -> None:
        """Record what a line of `RunLines` reports; ValueError if it is not such a line."""
        _, _, kind, text = line.split(" ", 3)
        content = json.loads(text)
        if kind == "rank":
            self.register(content["rank"], content["host"], content["pid"])
        elif kind == "begun":
            self.begin(content["rank"], content["host"], content["pid"])
        elif kind == "partial":
            self.note_partial(*_split(content))
        elif kind == "held":
            self.note_lock(*_split(content))
        elif kind == "words":
            self.note_recovery_hint(content)
        elif kind == "kept":
            self.note_kept()
        elif kind == "status":
            self.note_exit_status(content)
        elif kind == "answered":
            self.save_answer("")
        elif kind == "failure":
            self.claim_failure(content)
        elif kind == "record":
            self.complete(content)
        else:
            raise ValueError(f"unknown kind of status line: {kind}")


@dataclass(frozen=True)
class RunLines:
    """Run status as lines on stderr, for a process that reads what the ranks print.

    has_reader: whether there is such a process. Without one nothing is printed, and only claims count.
    """

    token: str
    has_reader: bool = True

    def begin(self, rank: int, host: str, pid: int) -> None:
        self._print("begun", {"rank": rank, "host": host, "pid": pid})

    def register(self, rank: int, host: str, pid: int) -> None:
        self._print("rank", {"rank": rank, "host": host, "pid": pid})

    def note_partial(self, *outputs: Path) -> None:
        self._print("partial", _joined(outputs))

    def note_lock(self, *outputs: Path) -> None:
        self._print("held", _joined(outputs))

    def note_recovery_hint(self, hint: str) -> None:
        self._print("words", hint)

    def note_kept(self) -> None:
        self._print("kept", True)

    def note_exit_status(self, status: int) -> None:
        self._print("status", status)

    def save_answer(self, answer: str) -> bool:
        if not answer:  # a longer one would not be a single write
            self._print("answered", True)
        return not answer

    def claim_failure(self, failure: dict[str, Any]) -> bool:
        first = self._claim(failure)
        if first:
            self._print("failure", failure)
        return first

    def suppress_failures(self) -> bool:
        return self._claim({})

    def _claim(self, content: dict[str, Any]) -> bool:
        try:
            return claim(self._note, content)
        except OSError:  # the disk is full: report twice rather than not at all
            return True

    def remove_claim(self) -> None:
        self._note.unlink(missing_ok=True)
        for path in self._note.parent.glob(files.temporaries(self._note)):  # of a rank killed in its claim
            path.unlink(missing_ok=True)

    def complete(self, record: dict[str, Any]) -> None:
        self._print("record", {"complete": True})  # lines must be short, and only its existence matters

    @property
    def _note(self) -> Path:
        return _claim_of(self.token)

    def _print(self, kind: str, content: Any) -> None:
        if self.has_reader:  # in a single write, so that lines of several ranks do not mix
            sys.stderr.write(f"{LINE} {self.token} {kind} {json.dumps(content)}\n")
            sys.stderr.flush()


def _claim_of(token: str) -> Path:
    return temporary_folder() / f"meshrun-{token}-failure.json"


def remove_stale_claims() -> None:
    """Remove the claims that killed ranks of this user have left in the folder for temporary files.

    A launcher kills ranks soon after SIGTERM, and nobody watches a bare `mpirun`.
    """
    some = _claim_of("*")
    for path in (*some.parent.glob(some.name), *some.parent.glob(files.temporaries(some))):
        with contextlib.suppress(OSError):  # removed in between
            found = path.lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > CLAIMED:
                path.unlink()


def _text(note: Path) -> str:
    """Return what `files.write_file` has written; names in it may be no UTF-8."""
    return note.read_text(encoding="utf-8", errors="surrogateescape")


def _joined(paths: Sequence[Path]) -> str:
    """Return paths as one text; no path has a null byte."""
    return "\0".join(map(str, paths))


def _split(text: str) -> list[Path]:
    return [Path(path) for path in text.split("\0") if path]


def _unlock(output: Path) -> None:
    """Remove the lock of a killed rank, which the kernel releases when the process has ended."""
    for _ in range(100):
        try:
            return lock.hold(output)()
        except UserError:  # not released yet, or held by another run
            time.sleep(0.01)


def _short(host: str) -> str:
    return host.partition(".")[0]


def claim(path: Path, content: dict[str, Any]) -> bool:
    """Create `path` with `content` atomically; False if it exists."""
    return files.create(path, json.dumps({"time": time.time(), **content}))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content
