"""One rank's last operations in a file of /dev/shm, written by the rank and read by any process of its user.

An operation is one record of eight words. It is written with one call when it is entered, and with one store
when it is left, without locks: a rank may be stopped at any instruction, and its recorder must be readable
then. A record's last word is its number, so that a reader can tell a record that is only half written. The
file also has a text about the rank, tables of names, counters of the messages to and from each peer, and
totals of each operation, which lose nothing when records are overwritten. It ends with the text that
`faulthandler` appends on request (`runner.recorder.process`).

`_record` is compiled at installation (hatch_build.py); `BUILT` is False if it was not. The same words are
then written from Python, which takes longer (benchmarks/flight_recorder.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import itertools
import json
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.processes import process_stat
from meshrun.runner.recorder.imports import ImportCounter

try:
    from meshrun.runner.recorder._record import functions_of
except ImportError:  # not compiled, or from older sources
    BUILT = False
else:
    BUILT = True

FOLDER = Path("/dev/shm")
PREFIX = "meshrun_"  # of all files' names; `launch.supervise.shared_memory` removes those of killed runs
# Followed by three words: operations and imported modules so far, and the steps that are planned.
MAGIC = b"meshrun1"
RECORDS = 4096  # of a rank, a power of two
WORDS = 8  # of a record: entered, left, moved, sequence, name, communicator, thread, number
TEXT = 4096  # bytes for the text about the rank
NEEDED = {"rank", "host", "device", "pid", "thread", "began"}  # of the text
RANKS_MOST = 1 << 24  # of a group
NAMES, NAME = 128, 64  # entries of the table of names, bytes of one
GROUPS, GROUP = 64, 512  # communicators
PEERS = 1024  # pairs of a communicator and a peer
PEER_WORDS = 4  # communicator and peer as one word, messages sent, messages to receive, unused

NAMES_AT = 64 + TEXT
GROUPS_AT = NAMES_AT + NAMES * NAME
PEERS_AT = GROUPS_AT + GROUPS * GROUP
SEQUENCES_AT = PEERS_AT + PEERS * PEER_WORDS * 8  # of each communicator, the last collective entered
RECORDS_AT = SEQUENCES_AT + GROUPS * 8
TOTALS_AT = RECORDS_AT + RECORDS * WORDS * 8  # of each name, outside and inside communicators
SIZE = TOTALS_AT + 2 * NAMES * 64

# What `enter` returns: the number of the operation, and above it the place of its totals: its name, or NAMES
# more for an operation of a communicator.
TOTAL_SHIFT = 48
NUMBER = (1 << TOTAL_SHIFT) - 1

# faulthandler's signal: a real-time one, which neither MPI, NCCL, Slurm nor jobs use.
TRACEBACK_SIGNAL = signal.SIGRTMAX - 3

# Names of operations in which a rank waits for others, and the end of the labels of device communicators.
WAIT, DEVICE_WAIT, ON_DEVICE = "wait for messages", "wait for the device", "on device"

_RECORD = struct.Struct(f"{WORDS}q")
_PEER = struct.Struct(f"{PEER_WORDS}q")
# Changes complete, entered, left, nanoseconds (sum of left less sum of entered), bytes, steps, unused, and
# changes begun. A reader copies the words in this order: it has whole ones if the first equals the last.
_TOTAL = struct.Struct("8q")
READS_MOST = 50  # of a total that is being written
_pack = _RECORD.pack_into
_now = time.monotonic_ns
_thread = threading.get_ident


@dataclass(frozen=True)
class RecordedGroup:
    """A communicator: a label that is the same on all of its ranks, and these; None if not recorded."""

    label: str
    members: tuple[int, ...] | None


class Recorder:
    """Writes this rank's operations. Thread-safe.

    path: the file, removed by `close`. Raises OSError if it cannot be made, such as on a full /dev/shm.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SIZE)  # else a full /dev/shm would be a SIGBUS later
            self._map = mmap.mmap(descriptor, SIZE)
            self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map)[RECORDS_AT:].cast("q")
        self._counter = memoryview(self._map)[len(MAGIC) : 16].cast("q")
        self._peers = memoryview(self._map)[PEERS_AT:SEQUENCES_AT].cast("q")
        self._sequences = memoryview(self._map)[SEQUENCES_AT:RECORDS_AT].cast("q")
        self._totals = memoryview(self._map)[TOTALS_AT:SIZE].cast("q")
        self._planned = memoryview(self._map)[24:32].cast("q")
        self._numbers = itertools.count(1)
        self._names: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._lock = threading.RLock()  # a signal's handler may record, too
        self._open = True
        if BUILT:
            self._bind()
        own = {
            "pid": os.getpid(),
            "start": start_time(os.getpid()),
            "namespace": namespace(),
            "thread": _thread(),
            "began": _now(),
            "time": time.time(),
        }
        text = json.dumps({**own, **about}).encode()
        if len(text) > TEXT:
            raise ValueError(f"{len(text)} bytes about a rank, expected at most {TEXT}")
        self._map[64 : 64 + len(text)] = text
        # Without a handler the signal kills. It is ignored before faulthandler handles it, and so afterwards:
        # who has read the file may send it when the recorder is closed, or Python ends.
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(TRACEBACK_SIGNAL, signal.SIG_IGN)
        faulthandler.register(TRACEBACK_SIGNAL, self._log, all_threads=False)
        self._imports = ImportCounter(memoryview(self._map)[16:24].cast("q"))
        self._imports.start()
        self._map[: len(MAGIC)] = MAGIC  # last: the file is complete, and the signal is handled

    def _bind(self) -> None:
        """Have `enter` and `leave` run from C."""
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        places = [begin + at for at in (len(MAGIC), SEQUENCES_AT, RECORDS_AT, TOTALS_AT)]
        ring = struct.pack("5q", *places, RECORDS)
        enter, leave = functions_of(ring)
        vars(self).update(enter=enter, leave=leave)

    def name(self, text: str) -> int:
        """Return the number of an operation's name; 0, which reads as "other", once the table is full."""
        number = self._names.get(text)
        return self._enter_name(text) if number is None else number

    def _enter_name(self, text: str) -> int:
        with self._lock:
            number = len(self._names) + 1
            if not self._open or number >= NAMES:
                return 0
            start = NAMES_AT + number * NAME
            raw = text.encode()[: NAME - 1]
            self._map[start : start + len(raw)] = raw
            self._names[text] = number
            return number

    def group(self, label: str, members: Sequence[int] | None) -> int:
        """Return the number of a communicator; 0, whose operations are not compared, once the table is full.

        members: the ranks in their order in it. label: the same on all of them.
        """
        with self._lock:
            number = len(self._groups) + 1
            if not self._open or number >= GROUPS:
                return 0
            raw = json.dumps([label, None if members is None else runs_of(members)]).encode()
            if len(raw) > GROUP:
                raw = json.dumps([label[:64], None]).encode()
            start = GROUPS_AT + number * GROUP
            self._map[start : start + len(raw)] = raw
            self._groups[label] = number
            return number

    def enter(self, name: int, moved: int = 0, group: int = 0, sequence: int = 0) -> int:
        """Record that an operation is entered; returns what `leave` needs.

        moved: bytes. group, sequence: of a collective, the communicator and its number there. Without a
        communicator, the number of a step or chunk.
        """
        number, now = next(self._numbers), _now()
        self._counter[0] = number
        record = (now, 0, moved, sequence, name, group, _thread(), number)
        _pack(self._map, RECORDS_AT + (number & (RECORDS - 1)) * 64, *record)
        if sequence:
            self._sequences[group] = sequence
        total = name + (NAMES if group else 0)
        self._add(total, 1, 0, -now, moved, 0)
        return total << TOTAL_SHIFT | number

    def leave(self, entry: int, steps: int = 0) -> None:
        """Record that an operation is left; in the totals only if its record has been overwritten since.

        entry: from `enter`. steps: time steps that were taken in it.
        """
        number, now = entry & NUMBER, _now()
        words, at = self._words, (number & (RECORDS - 1)) * WORDS
        if words[at + 7] == number:
            words[at + 1] = now
        self._add(entry >> TOTAL_SHIFT, 0, 1, now, 0, steps)

    def _add(self, total: int, entered: int, left: int, nanoseconds: int, moved: int, steps: int) -> None:
        """Add to the totals at a place."""
        words, at = self._totals, total * 8
        with self._lock:
            words[at + 7] += 1
            words[at + 1] += entered
            words[at + 2] += left
            words[at + 3] += nanoseconds
            words[at + 4] += moved
            words[at + 5] += steps
            words[at] += 1

    def plan_steps(self, count: int) -> None:
        """Record how many time steps the run is to take."""
        self._planned[0] = count

    def count(self, group: int, peer: int, sent: int, expected: int) -> None:
        """Count messages to rank `peer`, and messages that are to arrive from it, when they are posted."""
        at = self._pairs.get((group, peer))
        if at is None:
            at = self._enter_pair(group, peer)
        if at:
            self._peers[at + 1] += sent
            self._peers[at + 2] += expected

    def _enter_pair(self, group: int, peer: int) -> int:
        with self._lock:
            at = (len(self._pairs) + 1) * PEER_WORDS
            if not self._open or group == 0 or at >= PEERS * PEER_WORDS:
                return 0
            self._peers[at] = group << 32 | peer + 1
            self._pairs[group, peer] = at
            return at

    def close(self) -> None:
        """Remove the file. What is recorded from now on is lost; the memory stays until the process ends."""
        with self._lock:
            if self._open:
                self._open = False
                self._imports.stop()
                faulthandler.unregister(TRACEBACK_SIGNAL)
                os.close(self._log)
                self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Operation:
    """One record. entered, left: seconds ago, left None while it is open. moved: bytes.

    group: label of the communicator, "" without one. sequence: a collective's number in its communicator, or
    that of a step or chunk; 0 without one. number: counts all operations of the rank. main: whether it is the
    main thread's.
    """

    number: int
    name: str
    entered: float
    left: float | None
    moved: int = 0
    group: str = ""
    sequence: int = 0
    main: bool = True

    @property
    def is_collective(self) -> bool:
        return bool(self.group and self.sequence)

    def __str__(self) -> str:
        return f"{self.name} {self.sequence}" if self.sequence else self.name


@dataclass(frozen=True)
class Total:
    """All operations of a name. entered: how many. seconds: inside them, in open ones until now. moved:
    bytes. steps: time steps taken in those that were left. open: operations that were not left."""

    entered: int
    seconds: float
    moved: int = 0
    steps: int = 0
    open: int = 0


@dataclass(frozen=True)
class Recording:
    """What a rank's file says. about: as given to `Recorder`. operations: complete records in their order.

    age: seconds since the recorder began. collectives: by label of the communicator, the last one entered.
    messages: by label and peer, the numbers of messages that were sent to the peer and that are to arrive
    from it. totals, communication: of all operations so far, by name: those of the run itself (phases,
    steps, stages), and those of communicators. planned: steps that the run is to take; 0 if not recorded.
    """

    about: dict[str, Any]
    age: float
    operations: list[Operation]
    collectives: dict[str, int] = field(default_factory=dict)
    groups: dict[str, RecordedGroup] = field(default_factory=dict)
    messages: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    totals: dict[str, Total] = field(default_factory=dict)
    communication: dict[str, Total] = field(default_factory=dict)
    planned: int = 0


def file_of(run_id: str, rank: int, folder: Path = FOLDER) -> Path:
    return folder / f"{PREFIX}{os.geteuid()}_{run_id}_{rank}"


def files_of(run_id: str = "*", folder: Path = FOLDER) -> list[Path]:
    """Return this user's files: of one run, or of all."""
    found = []
    for path in folder.glob(f"{PREFIX}{os.geteuid()}_{run_id}_*"):
        with contextlib.suppress(OSError):  # removed in between
            if path.lstat().st_uid == os.geteuid():
                found.append(path)
    return sorted(found)


def count_of(path: Path) -> int | None:
    """Return the number of operations that a rank has entered and modules that it has imported; None if its
    file is not complete."""
    try:
        with path.open("rb") as file:
            head = file.read(24)
    except OSError:
        return None
    return sum(struct.unpack("2q", head[8:])) if len(head) == 24 and head.startswith(MAGIC) else None


def about_of(path: Path) -> dict[str, Any] | None:
    """Return what a file says about its rank; None if it is not complete, or damaged."""
    content = read_bytes(path)
    return None if content is None else _about(content)


def _about(content: bytes) -> dict[str, Any] | None:
    try:
        about = json.loads(_text(content, 64, TEXT))
    except (ValueError, RecursionError):
        return None
    return about if isinstance(about, dict) and about.keys() >= NEEDED else None


def start_time(pid: int) -> int:
    """Return when a process was started, in clock ticks after boot; 0 if there is none."""
    found = process_stat(pid)
    return found.start if found else 0


def namespace() -> str:
    """Return the identity of the namespace in which this process's number is valid; "" if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def read(path: Path, now: int | None = None, last: int = RECORDS) -> Recording | None:
    """Read a rank's file; None if there is none, or not a valid one. now: `time.monotonic_ns()`. last:
    operations to read, from the last one back; the totals count all of them."""
    # The time before the file is read: an operation that is left meanwhile must not count as longer.
    at, content = _now(), read_bytes(path)
    about = None if content is None else _about(content)
    totals = _whole_totals(path)
    if content is None or about is None or totals is None:
        return None
    try:
        return _recording(content[:TOTALS_AT] + totals, about, at if now is None else now, last)
    except (ValueError, LookupError, TypeError):
        return None


def _whole_totals(path: Path) -> bytes | None:
    """Return the totals of a file, each read until it is whole, or `READS_MOST` times; None without a file.

    Word by word: to read a file copies the words of a cache line in any order.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as whole,
            whole.cast("q") as words,
        ):
            found = bytearray(SIZE - TOTALS_AT)
            for place in range(0, len(found), _TOTAL.size):
                first = (TOTALS_AT + place) // 8
                for _ in range(READS_MOST if words[first + 7] else 0):
                    total = [words[first + n] for n in range(8)]
                    _TOTAL.pack_into(found, place, *total)
                    if total[0] == total[7]:
                        break
            return bytes(found)
    except (OSError, ValueError):  # a file that is too short
        return None


def _recording(content: bytes, about: dict[str, Any], now: int, last: int) -> Recording:
    names = ["other", *(_text(content, NAMES_AT + i * NAME, NAME) for i in range(1, NAMES))]
    groups = {0: RecordedGroup("", None)}
    for number in range(1, GROUPS):
        if text := _text(content, GROUPS_AT + number * GROUP, GROUP):
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # half written
                label, runs = json.loads(text)
                groups[number] = RecordedGroup(label, None if runs is None else members_of(runs))
    operations = []
    newest: int = struct.unpack_from("q", content, len(MAGIC))[0]
    places = range(RECORDS) if last == RECORDS else [(newest - i) & (RECORDS - 1) for i in range(last)]
    for place in places:
        record = _RECORD.unpack_from(content, RECORDS_AT + place * WORDS * 8)
        entered, left, moved, sequence, name, group, thread, number = record
        if number and number & (RECORDS - 1) == place and entered and group in groups:
            operations.append(
                Operation(
                    number,
                    names[name],
                    (now - entered) / 1e9,
                    (now - left) / 1e9 if left else None,
                    moved,
                    groups[group].label,
                    sequence,
                    thread == about["thread"],
                )
            )
    messages = {}
    for pair, sent, expected, _ in _PEER.iter_unpack(content[PEERS_AT:SEQUENCES_AT]):
        if pair and pair >> 32 in groups:
            messages[groups[pair >> 32].label, (pair & 0xFFFFFFFF) - 1] = (sent, expected)
    operations.sort(key=lambda operation: operation.number)
    sequences = struct.unpack(f"{GROUPS}q", content[SEQUENCES_AT:RECORDS_AT])
    return Recording(
        about,
        (now - about["began"]) / 1e9,
        operations,
        {group.label: sequences[number] for number, group in groups.items() if number},
        {group.label: group for number, group in groups.items() if number},
        messages,
        _totals(content[TOTALS_AT : TOTALS_AT + NAMES * 64], names, now),
        _totals(content[TOTALS_AT + NAMES * 64 : SIZE], names, now),
        struct.unpack_from("q", content, 24)[0],
    )


def _totals(content: bytes, names: Sequence[str], now: int) -> dict[str, Total]:
    """Return the totals by name, without those that were being written, as of a rank stopped while it did."""
    totals = {}
    words = _TOTAL.iter_unpack(content)
    for name, (complete, entered, left, nanoseconds, moved, steps, _, begun) in zip(
        names, words, strict=True
    ):
        if complete == begun and entered:
            open_now = entered - left
            seconds = max(nanoseconds + open_now * now, 0) / 1e9
            totals[name] = Total(entered, seconds, moved, steps, open_now)
    return totals


def read_bytes(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if len(content) >= SIZE and content.startswith(MAGIC) else None


def _text(content: bytes, at: int, length: int) -> str:
    return content[at : at + length].split(b"\0", 1)[0].decode(errors="replace")


def runs_of(members: Sequence[int]) -> list[list[int]]:
    """Return ranks as [first, step, count], which is short for the rows and columns of a grid."""
    runs: list[list[int]] = []
    for rank in members:
        if runs and runs[-1][2] == 1:
            runs[-1][1:] = [rank - runs[-1][0], 2]
        elif runs and rank == runs[-1][0] + runs[-1][1] * runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([rank, 1, 1])
    return runs


def members_of(runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the ranks that `runs_of` made short. ValueError if they are more than any run has."""
    if sum(count for _, _, count in runs) > RANKS_MOST:
        raise ValueError(f"a group of more than {RANKS_MOST:,} ranks")
    return tuple(first + step * i for first, step, count in runs for i in range(count))
