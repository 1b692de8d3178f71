"""What a run leaves for whoever started it: the completion record, and the first failure.

A launcher's exit status proves nothing (Open MPI has returned 0 after a lost host, MPICH after a
rank that left early). Success is the record that rank 0 writes last; the first failing rank's
error is a file that only the first can create. Standard library only: the command reads these
in the process that starts the ranks.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunDirectory:
    """A private directory that every rank of a run on this machine can write to."""

    path: Path

    @classmethod
    def create(cls) -> RunDirectory:
        import tempfile

        return cls(Path(tempfile.mkdtemp(prefix="meshrun-")))

    def register(self, rank: int, host: str, pid: int) -> None:
        """Say which process is which rank, so that a launcher's "PID 4711 was killed" gets a name."""
        _write(self.path / f"pid-{pid}", json.dumps({"rank": rank, "host": host}))

    def rank_of(self, pid: int) -> dict[str, Any] | None:
        return _read(self.path / f"pid-{pid}")

    def keep_partial(self, output: Path) -> None:
        """Name the unfinished output file, for removal if every rank is killed."""
        _write(self.path / "partial", str(output))

    def remove_partial(self) -> None:
        note = self.path / "partial"
        if note.exists():
            Path(note.read_text()).unlink(missing_ok=True)

    def claim_failure(self, failure: dict[str, Any]) -> bool:
        """Record `failure` if it is the run's first on this machine; False when another came before."""
        return claim(self.path / "failure.json", failure)

    def failure(self) -> dict[str, Any] | None:
        return _read(self.path / "failure.json")

    def complete(self, record: dict[str, Any]) -> None:
        """Write the completion record; rank 0's last act."""
        _write(self.path / "record.json", json.dumps(record))

    def record(self) -> dict[str, Any] | None:
        return _read(self.path / "record.json")


def claim(path: Path, content: dict[str, Any]) -> bool:
    """Create `path` with `content` in one step; False when it is there already."""
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
    try:
        temporary.write_text(json.dumps({"time": time.time(), **content}))
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _write(path: Path, text: str) -> None:
    """Write `path` in one step: whoever reads it finds all of it, even when the writer is killed half-way."""
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
    temporary.write_text(text)
    temporary.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content
