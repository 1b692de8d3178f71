"""The journal of an unfinished output: which chunks are finished, so that a later run computes only the
others.

    out.npy.journal/identity.json     inputs, job, options and chunks of the run; written once, atomically
    out.npy.journal/RUN-RANK.log      the chunks that one writer has finished; only appended to

A log consists of lines of text. Each begins with the CRC-32 of all text up to its end, so that a valid line
confirms those before it. Lines are read up to the first that is torn or corrupt:

    1a856132 boot "n1/5c0a2d6e"    the writer's host and its boot
    296b5fdc done 12               chunk 12 has been handed to the file system
    e5a504ca synced 1              the chunk of the first done line is on the disk

The numbers of chunks do not depend on the number of ranks, so that the logs of several runs can be combined.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshrun.runner import files
from meshrun.runner.errors import MeshrunError, RunError, UserError
from meshrun.runner.spelling import option
from meshrun.runner.storage.paths import journal_folder

IDENTITY, TEMPORARY = "identity.json", ".partial"  # TEMPORARY: suffix of an identity that is being written
LOG, FAILED = ".log", ".failed"  # a log, and one whose writer could not sync
SYNC_SECONDS = 10.0  # between two syncs: a power failure loses about so much work
SHOWN = 3  # differences that a message lists


@dataclass(frozen=True)
class Journal:
    """The journal of `output`. One rank calls its methods, except `log`, which every writer calls.

    The methods raise RunError if the journal cannot be read or written.
    """

    output: Path

    @property
    def folder(self) -> Path:
        return journal_folder(self.output)

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Start a new journal in place of any old one. identity: plain JSON values, which may be nested.

        The unfinished output must exist: its name is made durable, too.
        """
        text = json.dumps(identity, indent=1)
        self.remove()
        with _told("write", self.folder):
            # A new folder instead of an emptied one: after a power failure no old log can reappear in it.
            self.folder.mkdir()
            files.write_file(self.folder / IDENTITY, text, durable=True)
            files.sync_folder(self.folder.parent)

    def kept(self) -> dict[str, Any] | None:
        """Return the identity of the unfinished run; None if there is none.

        UserError if it is broken, or if another user has created it."""
        path = self.folder / IDENTITY
        with _told("read", path):
            try:
                files.check_own(self.folder, True, self.discard())
                identity = json.loads(path.read_bytes())
            except FileNotFoundError:  # also if `begin` or `remove` was interrupted
                return None
            except (ValueError, RecursionError):
                identity = None
        if not isinstance(identity, dict):
            raise UserError(f"{path} is broken", expected="a JSON object", hint=self.discard())
        return identity

    def finished(self, boots: Collection[str]) -> set[int]:
        """Return the chunks that need not be computed again. boots: the boot identities of this run's hosts.

        Synced chunks are on the disk, whatever has happened since. Chunks that are only done are in the page
        cache of the host that wrote them, which survives a killed process but not a reboot: they count if
        that host takes part in this run and has not been rebooted since. But if a sync failed, the kernel may
        have dropped pages that it could not write: then no unsynced chunk of any process of that boot
        counts. An identity without a boot ("name/") is not trusted.
        """
        with _told("read", self.folder):
            logs = self._logs()
        failed = {boot for path, (boot, _, _) in logs.items() if path.suffix == FAILED}
        trusted = {boot for boot in boots if boot and not boot.endswith("/")} - failed
        believed = (done if boot in trusted else done[:synced] for boot, done, synced in logs.values())
        return set().union(*believed)

    def is_empty(self) -> bool:
        """Return whether no process has noted a chunk."""
        with _told("read", self.folder):
            return not any(done for _, done, _ in self._logs().values())

    def _logs(self) -> dict[Path, tuple[str, list[int], int]]:
        return {path: _read(path) for path in self.folder.iterdir() if path.suffix in (LOG, FAILED)}

    def log(self, writer: str, boot: str) -> Log:
        """Return a new log. writer: a unique name of this process in this run, such as RUN-RANK."""
        return Log(self.folder / f"{writer}{LOG}", boot)

    def remove(self) -> None:
        """Remove the journal; every log must be closed. RunError if the folder has other files."""
        with _told("remove", self.folder), contextlib.suppress(FileNotFoundError):
            (self.folder / IDENTITY).unlink(missing_ok=True)  # first: without it the logs are not read
            for path in self.folder.iterdir():
                if path.suffix in (TEMPORARY, LOG, FAILED):
                    path.unlink()
            self.folder.rmdir()

    def check(self, kept: Mapping[str, Any], wanted: Mapping[str, Any], *partials: Path) -> None:
        """Raise UserError unless the unfinished run is the one wanted. partials: the unfinished outputs."""
        check_same(f"{self.output}, its unfinished run", kept, wanted, self.discard(*partials))

    def unfinished(self, *partials: Path) -> UserError:
        """Build the error for a run that is started while there is an unfinished one."""
        hint = f"the same command with {option('resume', True)}, or {self.discard(*partials)}"
        return UserError(f"an earlier run of {self.output} is unfinished", hint=hint)

    def discard(self, *others: Path) -> str:
        """Return how to discard the unfinished run, for a hint. others: to remove besides the journal."""
        return start_over(self.folder, *others)


class Log:
    """The log of the chunks that one process has finished. Any thread may call its methods.

    count: number of chunks in it. After a failed write, each call raises that RunError again, because lines
    after a torn one are not read.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self.path, self.count = path, 0
        self._lock, self._checksum = threading.Lock(), 0
        self._failure: RunError | None = None
        with _told("write", path):
            # O_EXCL: what is appended to another's torn line would be lost.
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
            files.sync_folder(path.parent)
        self._append(f"boot {json.dumps(boot)}")

    def done(self, number: int) -> None:
        """Note that all bytes of chunk `number` have been handed to the file system."""
        with self._lock:
            self._append(f"done {number}")
            self.count += 1

    def synced(self, count: int) -> None:
        """Note that the first `count` chunks noted here are on the disk; durable on return."""
        with self._lock:
            self._append(f"synced {count}")
        with _told("write", self.path):
            os.fdatasync(self._file)  # without the lock, so that `done` does not wait for the disk

    def distrust(self) -> None:
        """Record that a sync failed: by a rename, because the disk may be too full for another line."""
        with _told("rename", self.path):
            os.rename(self.path, self.path.with_suffix(FAILED))

    def close(self) -> None:
        with _told("write", self.path):
            os.close(self._file)  # network file systems may report a full disk only here

    def _append(self, text: str) -> None:
        if self._failure is not None:
            raise self._failure
        data = f"{text}\n".encode()
        checksum = zlib.crc32(data, self._checksum)
        line = b"%08x %b" % (checksum, data)
        try:
            with _told("write", self.path):
                while line:  # once; if a full disk cuts the line short, the second write fails
                    line = line[os.write(self._file, line) :]
        except RunError as failure:
            self._failure = failure
            raise
        self._checksum = checksum


class Syncer:
    """Records chunks in `log`, and syncs them to the disk regularly from its own thread.

    sync: returns when everything written before the call is on the disk, like fdatasync, or raises OSError
    or MeshrunError. Its descriptor must be open before the first write: the kernel reports a failed write
    once to each descriptor that is open, and may not report it to later ones. seconds: from the end of one
    sync to the beginning of the next.

    After a failed sync, every later call raises its error. The sync is not repeated: a second one would
    succeed although the pages are lost.
    """

    def __init__(self, log: Log, sync: Callable[[], None], seconds: float = SYNC_SECONDS) -> None:
        self.log, self._sync, self._seconds = log, sync, seconds
        self._failure: OSError | MeshrunError | None = None
        self._lock = threading.Lock()  # of two simultaneous syncs, the kernel reports a failure to one only
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def done(self, number: int) -> None:
        self._check()
        self.log.done(number)

    def sync(self) -> None:
        """Sync every chunk recorded so far to the disk, now."""
        with self._lock:
            self._check()
            count = self.log.count  # before the sync, which may miss chunks that are recorded meanwhile
            try:
                self._sync()
                self.log.synced(count)
            except (OSError, MeshrunError) as failure:
                self._failure = failure
                self.log.distrust()
                raise

    def close(self) -> None:
        """End the thread, after a sync in progress, and close the log without another sync."""
        self._ending.set()
        self._thread.join()
        try:
            self.log.close()
        finally:
            self._check()

    def _run(self) -> None:
        with contextlib.suppress(OSError, MeshrunError):  # already stored in `_failure`
            while not self._ending.wait(self._seconds):
                self.sync()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def start_over(*paths: Path) -> str:
    """Return how to discard what an earlier run has left at these paths, for a hint."""
    return f"to start from the beginning: {shlex.join(['rm', '-r', *map(str, paths)])}"


def check_same(what: str, kept: Mapping[str, Any], wanted: Mapping[str, Any], discard: str) -> None:
    """Raise UserError if what an earlier run has kept differs from what this one wants.

    what: the output and what is kept of it. discard: as `start_over` returns it.
    """
    names = differences(kept, wanted)
    if names:
        raise UserError(
            f"cannot resume {what} differs in {len(names)} value(s)",
            got=_shown(wanted, names),
            expected=_shown(kept, names),
            hint=f"the command as it was, or {discard}",
        )


def differences(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the names whose values differ or are missing on one side; `a.b` for b in a nested a."""
    old, new = _flat(kept), _flat(wanted)
    return [name for name in new | old if new.get(name) != old.get(name)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return each value as JSON text, in which tuples equal lists, and nan equals nan."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if nested else {prefix + name: json.dumps(value)}
    return flat


def _shown(values: Mapping[str, Any], names: list[str]) -> str:
    """Return the first few of the named values as text."""
    flat = _flat(values)
    return ", ".join(f"{name} {flat.get(name, 'not given')}" for name in names[:SHOWN])


def _read(path: Path) -> tuple[str, list[int], int]:
    """Return a log's boot identity, its finished chunks, and how many of them are on the disk."""
    boot, done, synced, checksum = "", [], 0, 0
    for line in path.read_bytes().split(b"\n")[:-1]:  # a line without newline is torn
        stated, _, text = line.partition(b" ")
        checksum = zlib.crc32(text + b"\n", checksum)
        if stated != b"%08x" % checksum:
            break
        word, _, value = text.partition(b" ")
        if word == b"boot":
            boot = json.loads(value)
        elif word == b"done":
            done.append(int(value))
        else:
            synced = max(synced, int(value))
    return boot, done, synced


@contextlib.contextmanager
def _told(verb: str, path: Path) -> Iterator[None]:
    """Re-raise an OSError as a RunError."""
    try:
        yield
    except OSError as reason:
        full = reason.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = (
            f"make room, then the command with {option('resume', True)}: finished chunks are kept"
            if full
            else None
        )
        raise RunError(f"cannot {verb} {path}", why=reason.strerror or reason, hint=hint) from reason
