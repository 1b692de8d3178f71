"""The journal beside an output: which chunks are finished, so that a later run does only the others.

    out.npy.journal/identity.json     what is made from what, and how it is cut; written once, whole
    out.npy.journal/NONCE-RANK.log    what one writer has finished; only ever appended to

A log is lines of text, each led by the CRC-32 of all text up to and with it, so that a line vouches
for those before it, and the first that is torn or garbled ends what is believed of the log:

    1a856132 boot "n1/5c0a2d6e"    the writer's host, and which of its boots
    296b5fdc done 12               chunk 12 has been handed to the file system
    e5a504ca synced 1              the first one of the done lines is on the disk

Chunks are numbered whatever the number of ranks, so that the logs of several runs add up.
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

from runner import files
from runner.errors import MeshrunError, RunError, UserError

IDENTITY, TEMPORARY = "identity.json", ".partial"  # the latter ends the name of one that is being written
LOG, FAILED = ".log", ".failed"  # a log, and one whose writer could not sync
SYNC_SECONDS = 10.0  # from one sync to the next: about as much work as a power failure costs
SHOWN = 3  # differences that a sentence spells out


@dataclass(frozen=True)
class Journal:
    """The journal of `output`. One rank calls its methods, except `log`, which every writer calls.

    RunError when the journal cannot be read or written.
    """

    output: Path

    @property
    def folder(self) -> Path:
        return self.output.with_name(f"{self.output.name}.journal")

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Start a new journal in place of any old one. identity: plain JSON values, nested as need be.

        To be called when the unfinished output is there: its name is made durable too.
        """
        text = json.dumps(identity, indent=1)
        self.remove()
        with _told("write", self.folder):
            # A new folder, not one emptied: after a power failure no old log can turn up in it.
            self.folder.mkdir()
            files.write_file(self.folder / IDENTITY, text, durable=True)
            files.sync_folder(self.folder.parent)

    def kept(self) -> dict[str, Any] | None:
        """The identity of the unfinished run; None when there is none. UserError when it is broken, or
        when somebody else has put it there."""
        path = self.folder / IDENTITY
        with _told("read", path):
            try:
                files.check_own(self.folder, True, self.anew())
                identity = json.loads(path.read_bytes())
            except FileNotFoundError:  # also where `begin` or `remove` was cut short
                return None
            except ValueError:
                identity = None
        if not isinstance(identity, dict):
            raise UserError(f"{path} is broken", expected="a JSON object", hint=self.anew())
        return identity

    def finished(self, boots: Collection[str]) -> set[int]:
        """The chunks that need not be done again. boots: the boot identities of this run's hosts.

        Those that were synced are on the disk, whatever happened since. Those that were only done
        are in the page cache of the host that wrote them, which outlives a killed process but not
        the kernel: they count when that host takes part, not rebooted since. Not so where a sync
        failed, because the kernel may drop pages that it could not write: then nothing counts that
        any process of that boot left unsynced. An identity without a boot ("name/") is not trusted.
        """
        with _told("read", self.folder):
            logs = {path: _read(path) for path in self.folder.iterdir() if path.suffix in (LOG, FAILED)}
        failed = {boot for path, (boot, _, _) in logs.items() if path.suffix == FAILED}
        trusted = {boot for boot in boots if boot and not boot.endswith("/")} - failed
        believed = (done if boot in trusted else done[:synced] for boot, done, synced in logs.values())
        return set().union(*believed)

    def log(self, writer: str, boot: str) -> Log:
        """A new log. writer: names this process in this run, such as NONCE-RANK; never used twice."""
        return Log(self.folder / f"{writer}{LOG}", boot)

    def remove(self) -> None:
        """Forget it all; every log is closed. What else is in the folder is not ours: RunError."""
        with _told("remove", self.folder), contextlib.suppress(FileNotFoundError):
            (self.folder / IDENTITY).unlink(missing_ok=True)  # first: without it the logs mean nothing
            for path in self.folder.iterdir():
                if path.suffix in (TEMPORARY, LOG, FAILED):
                    path.unlink()
            self.folder.rmdir()

    def check(self, kept: Mapping[str, Any], wanted: Mapping[str, Any], *partials: Path) -> None:
        """UserError unless the unfinished run is the one wanted. partials: the outputs as far as they got."""
        names = differences(kept, wanted)
        if names:
            raise UserError(
                f"cannot resume {self.output}, its unfinished run differs in {len(names)} value(s)",
                got=show_values(wanted, names),
                expected=show_values(kept, names),
                hint=f"the command as it was, or {self.anew(*partials)}",
            )

    def unfinished(self, *partials: Path) -> UserError:
        """The refusal to begin where there is something to resume."""
        hint = f"the same command with --resume, or {self.anew(*partials)}"
        return UserError(f"an earlier run of {self.output} is unfinished", hint=hint)

    def anew(self, *others: Path) -> str:  # what to type
        return "to begin anew: " + shlex.join(["rm", "-r", *map(str, (self.folder, *others))])


class Log:
    """What one process has finished, for `Journal.finished`. Its methods may be called by any thread.

    count: chunks noted. After a failed write each call raises that RunError again, because nothing
    that follows a torn line would be read.
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
            os.fdatasync(self._file)  # without the lock: the disk must not keep `done` waiting

    def distrust(self) -> None:
        """Note that a sync failed. A rename, because the disk may be too full for a line."""
        with _told("rename", self.path):
            os.rename(self.path, self.path.with_suffix(FAILED))

    def close(self) -> None:
        with _told("write", self.path):
            os.close(self._file)  # where network file systems tell of a full disk

    def _append(self, text: str) -> None:
        if self._failure is not None:
            raise self._failure
        data = f"{text}\n".encode()
        checksum = zlib.crc32(data, self._checksum)
        line = b"%08x %b" % (checksum, data)
        try:
            with _told("write", self.path):
                while line:  # once; what a full disk cuts short fails the second time
                    line = line[os.write(self._file, line) :]
        except RunError as failure:
            self._failure = failure
            raise
        self._checksum = checksum


class Syncer:
    """Notes chunks in `log`, and from a thread of its own puts them on the disk time and again.

    sync: returns when all that was written before the call is on the disk, as fdatasync does, or
    raises OSError or MeshrunError. Its descriptor must be open from before the first write on: the
    kernel tells each that is open, once, that it could not write; later ones may not hear of it.
    seconds: from the end of one sync to the beginning of the next.

    A failed sync is raised by every later call, not repeated: a second one succeeds, the pages gone.
    """

    def __init__(self, log: Log, sync: Callable[[], None], seconds: float = SYNC_SECONDS) -> None:
        self.log, self._sync, self._seconds = log, sync, seconds
        self._failure: OSError | MeshrunError | None = None
        self._lock = threading.Lock()  # of two syncs at once the kernel would tell one of a failure
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def done(self, number: int) -> None:
        self._check()
        self.log.done(number)

    def sync(self) -> None:
        """Put every chunk noted so far on the disk, now."""
        with self._lock:
            self._check()
            count = self.log.count  # before: what is noted while the disk works may not be on it
            try:
                self._sync()
                self.log.synced(count)
            except (OSError, MeshrunError) as failure:
                self._failure = failure
                self.log.distrust()
                raise

    def close(self) -> None:
        """End the thread, after a sync under way, and close the log. Does not sync once more."""
        self._ending.set()
        self._thread.join()
        try:
            self.log.close()
        finally:
            self._check()

    def _run(self) -> None:
        with contextlib.suppress(OSError, MeshrunError):  # `_failure` by then
            while not self._ending.wait(self._seconds):
                self.sync()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def differences(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The names whose values differ or are missing on one side; `a.b` for b in a nested a."""
    old, new = _flat(kept), _flat(wanted)
    return [name for name in new | old if new.get(name) != old.get(name)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Each value as JSON text, in which a tuple is a list, and nan equals nan."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if nested else {prefix + name: json.dumps(value)}
    return flat


def show_values(values: Mapping[str, Any], names: list[str]) -> str:
    """Return the first of the named values as a text."""
    flat = _flat(values)
    return ", ".join(f"{name} {flat.get(name, 'not given')}" for name in names[:SHOWN])


def _read(path: Path) -> tuple[str, list[int], int]:
    """A log's boot identity, the chunks that are done, and how many of them are on the disk."""
    boot, done, synced, checksum = "", [], 0, 0
    for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last newline is torn
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
    """An OSError as a sentence."""
    try:
        yield
    except OSError as reason:
        full = reason.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "make room, then the command with --resume: what is finished is kept" if full else None
        raise RunError(f"cannot {verb} {path}", got=reason.strerror or reason, hint=hint) from reason
