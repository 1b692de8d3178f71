"""What a run leaves for whoever started it: the completion record, and the first failure.

A launcher's exit status proves nothing (Open MPI has returned 0 after a lost host, MPICH after a
rank that left early). Success is the record that rank 0 writes last; the first failing rank's
error is a file that only the first can create. Ranks on other hosts cannot write to a directory of the
process that started them, and tell it in lines among what they print. Standard library only: the
command reads these in the process that starts the ranks.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner import files, lock
from runner.errors import UserError

LINE = "\x1emeshrun-run"  # begins a line for the process that started the ranks; no program prints it


class Run(Protocol):
    """Where ranks leave what whoever started them must know."""

    def register(self, rank: int, host: str, pid: int) -> None:
        """Say which process is which rank, so that a launcher's "PID 4711 was killed" gets a name."""

    def keep_partial(self, output: Path | None) -> None:
        """Name the unfinished output, for removal if every rank is killed; None: none is to be removed."""

    def keep_hold(self, output: Path) -> None:
        """Name the output that this run holds, to be let go if every rank is killed."""

    def keep_words(self, words: str) -> None:
        """What is to be told of a run that does not succeed, besides why; "": nothing."""

    def keep_status(self, status: int) -> None:
        """The exit status of a run whose ranks end and say nothing, instead of 1."""

    def keep_answer(self, answer: str) -> bool:
        """What a command that ends with an answer has found so far, for whoever has to give it in rank 0's
        place; "": it is given. False: it is too long for the way there.
        """

    def claim_failure(self, failure: dict[str, Any]) -> bool:
        """Record `failure` if it is the first on this host; False when another came before."""

    def close(self) -> bool:
        """Leave no claim to later failures: this host's ranks are being ended. False when there is one."""

    def forget(self) -> None:
        """Remove this host's claim, where nobody else will; for the rank that made it."""

    def complete(self, record: dict[str, Any]) -> None:
        """Leave the completion record; rank 0's last act."""


def lost_note(job: str) -> Path:
    """Where ranks of a Slurm job say, in its working directory, that a host is lost.

    What they print goes through the job's first host, which may be that one.
    """
    return Path(f"meshrun-{job}.lost")


def run_at(place: str) -> Run:
    """The run that `--run-dir` names: a directory, or "@TOKEN" where lines are read."""
    return RunLines(place[1:]) if place.startswith("@") else RunDirectory(Path(place))


@dataclass(frozen=True)
class RunDirectory:
    """A private directory that every rank of a run on this machine can write to."""

    path: Path

    @classmethod
    def create(cls) -> RunDirectory:
        return cls(Path(tempfile.mkdtemp(prefix="meshrun-")))

    def register(self, rank: int, host: str, pid: int) -> None:
        files.write_file(self.path / f"pid-{pid}@{host}", json.dumps({"rank": rank, "host": host}))

    def begun(self) -> bool:
        """Whether a rank has registered."""
        return any(self.path.glob("pid-*"))

    def rank_of(self, pid: int, host: str | None = None) -> dict[str, Any] | None:
        """The rank and host of a process; None where there is none, or several hosts have such a process.

        host: as the launcher names it, with its domain or without.
        """
        known = [_read(path) for path in self.path.glob(f"pid-{pid}@*")]
        named = [one for one in known if one and _short(one["host"]) == _short(host or "")]
        found = named or known
        return found[0] if len(found) == 1 else None

    def keep_partial(self, output: Path | None) -> None:
        if output is None:
            (self.path / "partial").unlink(missing_ok=True)
        else:
            files.write_file(self.path / "partial", str(output))

    def remove_partial(self) -> None:
        note = self.path / "partial"
        if note.exists():
            remove_partial(Path(note.read_text()))
        held = self.path / "held"
        if held.exists():
            with contextlib.suppress(OSError):
                _free(Path(held.read_text()))

    def keep_hold(self, output: Path) -> None:
        files.write_file(self.path / "held", str(output))

    def keep_words(self, words: str) -> None:
        files.write_file(self.path / "words", words)

    def words(self) -> str:
        """What is to be told if the run does not succeed."""
        note = self.path / "words"
        return note.read_text() if note.exists() else ""

    def keep_status(self, status: int) -> None:
        files.write_file(self.path / "status", str(status))

    def status(self) -> int:
        """Of a run that did not succeed, where no rank said why."""
        note = self.path / "status"
        return int(note.read_text()) if note.exists() else 1

    def keep_answer(self, answer: str) -> bool:
        files.write_file(self.path / "answer", answer)
        return True

    def answer(self) -> str | None:
        """The last one kept; None where there was none."""
        note = self.path / "answer"
        return note.read_text() if note.exists() else None

    def claim_failure(self, failure: dict[str, Any]) -> bool:
        return claim(self.path / "failure.json", failure)

    def close(self) -> bool:
        return claim(self.path / "failure.json", {})

    def forget(self) -> None:
        """Nothing: the directory goes as a whole."""

    def failure(self) -> dict[str, Any] | None:
        """The first one; None where there was none before ranks were ended."""
        found = _read(self.path / "failure.json") or {}
        return found if "sentence" in found else None

    def complete(self, record: dict[str, Any]) -> None:
        files.write_file(self.path / "record.json", json.dumps(record))

    def record(self) -> dict[str, Any] | None:
        return _read(self.path / "record.json")

    def hear(self, line: str) -> None:
        """Keep what a line of `RunLines` tells; ValueError for what is none."""
        _, _, kind, text = line.split(" ", 3)
        told = json.loads(text)
        if kind == "rank":
            self.register(told["rank"], told["host"], told["pid"])
        elif kind == "partial":
            self.keep_partial(Path(told) if told else None)
        elif kind == "held":
            self.keep_hold(Path(told))
        elif kind == "words":
            self.keep_words(told)
        elif kind == "status":
            self.keep_status(told)
        elif kind == "answered":
            self.keep_answer("")
        elif kind == "failure":
            self.claim_failure(told)
        elif kind == "record":
            self.complete(told)
        else:
            raise ValueError(f"{kind} is nothing that a rank tells")


@dataclass(frozen=True)
class RunLines:
    """Lines on stderr for a process that reads what the ranks print. heard: whether there is one."""

    token: str
    heard: bool = True

    def register(self, rank: int, host: str, pid: int) -> None:
        self._say("rank", {"rank": rank, "host": host, "pid": pid})

    def keep_partial(self, output: Path | None) -> None:
        self._say("partial", str(output) if output else "")

    def keep_hold(self, output: Path) -> None:
        self._say("held", str(output))

    def keep_words(self, words: str) -> None:
        self._say("words", words)

    def keep_status(self, status: int) -> None:
        self._say("status", status)

    def keep_answer(self, answer: str) -> bool:
        if not answer:  # all of it is no single write any more
            self._say("answered", True)
        return not answer

    def claim_failure(self, failure: dict[str, Any]) -> bool:
        first = self._claim(failure)
        if first:
            self._say("failure", failure)
        return first

    def close(self) -> bool:
        return self._claim({})

    def _claim(self, content: dict[str, Any]) -> bool:
        try:
            return claim(self._note, content)
        except OSError:  # no room for notes: rather twice than not at all
            return True

    def forget(self) -> None:
        self._note.unlink(missing_ok=True)
        for path in self._note.parent.glob(files.temporaries(self._note)):  # of a rank killed in its claim
            path.unlink(missing_ok=True)

    def complete(self, record: dict[str, Any]) -> None:
        self._say("record", {"complete": True})  # that there is one is what counts, and lines are short

    @property
    def _note(self) -> Path:
        return Path(tempfile.gettempdir(), f"meshrun-{self.token}-failure.json")

    def _say(self, kind: str, content: Any) -> None:
        if self.heard:  # in one write, so that ranks do not mix
            sys.stderr.write(f"{LINE} {self.token} {kind} {json.dumps(content)}\n")
            sys.stderr.flush()


def _free(output: Path) -> None:
    """Remove the lock that a rank which was killed has left; it has it until the system has ended it."""
    for _ in range(100):
        try:
            return lock.hold(output)()
        except UserError:  # that rank, for a moment more, or another run
            time.sleep(0.01)


def remove_partial(output: Path) -> None:
    """Remove an unfinished output, a file or a folder, or nothing where there is none."""
    if output.is_dir() and not output.is_symlink():
        shutil.rmtree(output, ignore_errors=True)  # other ranks may be removing it too
    else:
        output.unlink(missing_ok=True)


def _short(host: str) -> str:
    return host.partition(".")[0]


def claim(path: Path, content: dict[str, Any]) -> bool:
    """Create `path` with `content` in one step; False when it is there already."""
    return files.create(path, json.dumps({"time": time.time(), **content}))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content
