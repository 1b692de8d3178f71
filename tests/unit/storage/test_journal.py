"""The journal: no chunk counts that was not finished, none that was is lost, whatever stops a run when."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.storage.journal import IDENTITY, Journal, Log, Syncer, differences

COUNT, CHUNK = 6, 64  # chunks of the output that is made here, and bytes of each
IDENTITY_OF = {"job": "edges", "input": {"path": "in.npy", "size": 384}, "parameters": {"gain": 2.0}}
HERE = "n1/boot-1"
NEVER = 1e6  # seconds between syncs, where a test calls for them itself


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "out.npy")
    journal.begin(IDENTITY_OF)
    return journal


def lines(path: Path) -> list[str]:
    """A log without its checksums."""
    return [line.partition(" ")[2] for line in path.read_text().splitlines()]


def wait_until(true: Callable[[], bool]) -> None:
    """conftest's guard ends what waits for ever."""
    pause = threading.Event()
    while not true():
        pause.wait(0.001)


# What is recorded counts, and what it means to be recorded.


def test_what_is_on_the_disk_counts_for_any_host_and_the_rest_for_the_boot_that_wrote_it(
    journal: Journal,
) -> None:
    log = journal.log("a-0", HERE)
    assert journal.finished({HERE}) == set()
    log.done(4)
    log.done(1)
    assert (journal.finished({HERE}), journal.finished({"n1/boot-2", "n2/boot-1"})) == ({1, 4}, set())
    log.synced(1)
    assert (journal.finished({"n2/x", HERE}), journal.finished(())) == ({1, 4}, {4})
    log.done(0)
    log.synced(3)
    log.close()
    assert journal.finished(()) == {0, 1, 4}


def test_logs_of_several_writers_and_runs_add_up(journal: Journal) -> None:
    for writer, boot, number in [
        ("a-0", "n1/1", 0),
        ("a-1", "n2/1", 1),
        ("b-0", "n1/2", 2),
        ("b-1", "n2/1", 1),
    ]:
        log = journal.log(writer, boot)
        log.done(number)
        log.close()
    assert journal.finished({"n1/1", "n1/2", "n2/1"}) == {0, 1, 2}
    assert journal.finished({"n2/1"}) == {1}
    assert journal.finished({"n1/2", "n3/1"}) == {2}


@pytest.mark.parametrize("boot", ["n1/é\n done 3", "", " ", '"'])
def test_any_boot_identity_is_told_back_and_an_empty_one_not_trusted(journal: Journal, boot: str) -> None:
    log = journal.log("a-0", boot)
    log.done(7)
    assert journal.finished({boot}) == ({7} if boot else set())


def test_a_log_has_one_writer(journal: Journal) -> None:
    journal.log("a-0", HERE).done(3)
    with pytest.raises(RunError, match=r"cannot write .*a-0\.log: File exists"):
        journal.log("a-0", HERE)
    assert journal.finished({HERE}) == {3}


def test_writers_on_many_threads_leave_one_readable_log(journal: Journal) -> None:
    log = journal.log("a-0", HERE)

    def write(first: int) -> None:
        for number in range(first, 2000, 4):
            log.done(number)
            if number % 100 == 0:
                log.synced(0)

    threads = [threading.Thread(target=write, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.finished({HERE}) == set(range(2000))
    assert log.count == 2000


# Torn and garbled logs. A history is what a log was told; an int is a chunk done, "synced" a sync of all.

histories = st.lists(st.one_of(st.integers(0, 40), st.just("synced")), max_size=12)


def record(journal: Journal, writer: str, boot: str, history: Iterable[int | str]) -> list[int]:
    """Write it; where in the file each entry ends, the log's first line being the first."""
    log = journal.log(writer, boot)
    ends = [log.path.stat().st_size]
    for entry in history:
        if isinstance(entry, int):
            log.done(entry)
        else:
            log.synced(log.count)
        ends.append(log.path.stat().st_size)
    log.close()
    return ends


def expected(history: list[int | str], whole: bool) -> set[int]:
    """What counts of it. whole: with what was not synced."""
    last = max((place for place, entry in enumerate(history) if entry == "synced"), default=0)
    return {entry for entry in (history if whole else history[:last]) if isinstance(entry, int)}


def up_to(history: list[int | str], ends: list[int], length: int) -> list[int | str]:
    """The entries that lie whole in the first `length` bytes."""
    return [entry for entry, end in zip(history, ends[1:], strict=True) if end <= length]


def check(
    journal: Journal, boot: str, kept: list[int | str], other: list[int | str], with_boot: bool
) -> None:
    assert journal.finished(()) == expected(kept, False) | expected(other, False)
    assert journal.finished({"n2/1"}) == expected(kept, False) | expected(other, True)
    assert journal.finished({boot, "n2/1"}) == expected(kept, with_boot) | expected(other, True)


@given(histories, histories, st.data())
def test_a_truncated_log_tells_what_precedes_the_cut_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[int | str],
    other: list[int | str],
    data: st.DataObject,
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "out.npy")
    journal.begin({})
    ends = record(journal, "a-0", HERE, history)
    record(journal, "a-1", "n2/1", other)
    length = data.draw(st.integers(0, ends[-1]), label="length")
    os.truncate(journal.folder / "a-0.log", length)
    check(journal, HERE, up_to(history, ends, length), other, with_boot=length >= ends[0])


@given(histories, st.binary(max_size=40), st.data())
def test_nothing_from_a_garbled_byte_on_is_believed(
    tmp_path_factory: pytest.TempPathFactory, history: list[int | str], garbage: bytes, data: st.DataObject
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "out.npy")
    journal.begin({})
    ends = record(journal, "a-0", HERE, history)
    path = journal.folder / "a-0.log"
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1), label="place")
    wrong = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]), label="wrong")
    path.write_bytes(whole[:place] + bytes([wrong]) + whole[place + 1 :])
    check(journal, HERE, up_to(history, ends, place), [], with_boot=place >= ends[0])
    # An extent that never reached the disk reads as zeros; lines that follow it are whole, and not believed.
    path.write_bytes(whole[:place] + bytes(len(whole) - place) + whole)
    check(journal, HERE, up_to(history, ends, place), [], with_boot=place >= ends[0])
    path.write_bytes(whole + garbage)
    check(journal, HERE, history, [], with_boot=True)


@pytest.mark.parametrize("change", ["lost", "twice", "swapped"])
def test_whole_lines_out_of_place_are_not_believed(journal: Journal, change: str) -> None:
    record(journal, "a-0", HERE, [1, 2, 3, "synced"])
    path = journal.folder / "a-0.log"
    boot, one, two, three, synced = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        b"".join(
            {
                "lost": [boot, one, three, synced],
                "twice": [boot, one, one, two, three, synced],
                "swapped": [boot, one, three, two, synced],
            }[change]
        )
    )
    assert (journal.finished({HERE}), journal.finished(())) == ({1}, set())


# kill -9, at every system call of a whole run and in the middle of each line that it writes.


def body(number: int) -> bytes:
    return bytes([number + 1]) * CHUNK


def work(output: Path, boot: str, writer: str = "a-0") -> None:
    """A run of one rank, resumed if there is a journal. Its sync copies the output to `disk`."""
    journal, partial, disk = Journal(output), output.with_suffix(".partial"), output.with_suffix(".disk")
    file = os.open(partial, os.O_RDWR | os.O_CREAT)

    def sync() -> None:
        shutil.copyfile(partial, f"{disk}.tmp")
        os.replace(f"{disk}.tmp", disk)

    if journal.kept() is None:
        os.ftruncate(file, 0)
        os.ftruncate(file, COUNT * CHUNK)
        journal.begin(IDENTITY_OF)
        finished = set()
    else:
        finished = journal.finished({boot})
    syncer = Syncer(journal.log(writer, boot), sync, NEVER)
    for number in sorted(set(range(COUNT)) - finished):
        os.pwrite(file, body(number), number * CHUNK)
        syncer.done(number)
        if number % 3 == 1:
            syncer.sync()
    syncer.close()
    os.replace(partial, output)
    journal.remove()


def test_what_a_run_is_reaches_the_disk_before_its_name_and_names_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, done = Journal(tmp_path / "out.npy"), []
    sync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        done.append(("on the disk", Path(os.readlink(f"/proc/self/fd/{file}"))))
        sync(file)

    def named(source: Path, target: Path) -> None:
        done.append(("named", target))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    journal.begin(IDENTITY_OF)
    (_, written), (_, name), *folders = done
    assert done[:2] == [("on the disk", written), ("named", name)]
    assert written.parent == name.parent == journal.folder
    assert json.loads(name.read_text()) == IDENTITY_OF
    assert folders == [("on the disk", journal.folder), ("on the disk", tmp_path)]


CALLS: dict[Any, tuple[str, ...]] = {
    os: ("open", "write", "pwrite", "ftruncate", "fsync", "fdatasync", "replace", "close"),
    Path: ("mkdir", "unlink", "rmdir"),
}


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive")


def killed(output: Path, step: int, torn: bool, boot: str) -> int:
    """The wait status of a process that works and kills itself before its system call number `step`.

    torn: instead in its write number `step`, half of which is written.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        steps = itertools.count()

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def counts(*arguments: Any, **options: Any) -> Any:
                if torn and call.__name__ not in ("write", "pwrite"):
                    return call(*arguments, **options)
                if next(steps) == step:
                    if torn:
                        file, data, *place = arguments
                        call(file, data[: len(data) // 2], *place)
                    die()
                return call(*arguments, **options)

            return counts

        for owner, names in CALLS.items():
            for name in names:
                setattr(owner, name, counted(getattr(owner, name)))
        work(output, boot)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("power", ["kept", "lost"])
@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_any_point_a_run_is_resumed_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool, power: str
) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda file: None)  # nobody takes the machine's power away
    survived = []
    for step in itertools.count():
        output = tmp_path / str(step) / "out.npy"
        output.parent.mkdir()
        journal, partial, disk = Journal(output), output.with_suffix(".partial"), output.with_suffix(".disk")
        status = killed(output, step, torn, HERE)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        boot = HERE
        if power == "lost":
            boot = "n1/boot-2"
            if partial.exists():
                partial.write_bytes(disk.read_bytes() if disk.exists() else b"")
        if journal.kept() is None:
            survived.append(0 if not output.exists() else COUNT)
        elif partial.exists():
            assert journal.kept() == IDENTITY_OF
            finished = journal.finished({boot})
            data = partial.read_bytes()
            for number in finished:
                assert data[number * CHUNK : (number + 1) * CHUNK] == body(number), (step, number)
            survived.append(len(finished))
        if not output.exists():
            work(output, boot, "b-0")
            assert list(output.parent.glob("*journal*")) == []
        assert output.read_bytes() == b"".join(map(body, range(COUNT))), step
    assert survived == sorted(survived)  # what is finished stays so, and
    if not torn:  # each point was met
        assert set(survived) == ({0, 2, 5, 6} if power == "lost" else set(range(COUNT + 1)))


# Syncing.


def test_chunks_that_are_done_while_the_disk_works_are_not_taken_for_synced(journal: Journal) -> None:
    entered, leave = threading.Event(), threading.Event()

    def sync() -> None:
        entered.set()
        leave.wait()

    log = journal.log("a-0", HERE)
    log.done(0)
    log.done(1)
    syncer = Syncer(log, sync, seconds=0.001)
    entered.wait()
    syncer.done(2)  # neither waits for the disk
    syncer.done(3)
    assert journal.finished(()) == set()
    leave.set()
    wait_until(lambda: journal.finished(()) != set())
    assert "synced 2" in lines(log.path)
    assert lines(log.path).index("synced 2") > lines(log.path).index("done 3")
    wait_until(lambda: journal.finished(()) == {0, 1, 2, 3})
    syncer.close()


def test_no_chunk_is_synced_before_its_bytes_are(journal: Journal) -> None:
    written: list[int] = []
    durable: set[int] = set()

    def sync() -> None:
        copy = set(written)
        durable.update(copy)

    syncer = Syncer(journal.log("a-0", HERE), sync, seconds=0.0001)
    for number in range(3000):
        written.append(number)
        syncer.done(number)
        if number % 100 == 0:
            assert journal.finished(()) <= durable
    wait_until(lambda: len(journal.finished(())) == 3000)
    syncer.close()


def test_syncs_take_turns(journal: Journal) -> None:
    # Of two at once on one descriptor, the kernel would tell only one that the disk has failed.
    inside, most, passed = [0], [0], [0]

    def sync() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        passed[0] += 1
        threading.Event().wait(0.001)
        inside[0] -= 1

    syncer = Syncer(journal.log("a-0", HERE), sync, seconds=0.0001)
    for _ in range(20):
        syncer.sync()
    wait_until(lambda: passed[0] > 25)
    syncer.close()
    assert most == [1]


def test_close_waits_for_a_sync_under_way_and_does_not_begin_one(journal: Journal) -> None:
    entered, leave = threading.Event(), threading.Event()

    def sync() -> None:
        entered.set()
        leave.wait()

    syncer = Syncer(journal.log("a-0", HERE), sync, seconds=0.001)
    entered.wait()
    syncer.done(0)
    closer = threading.Thread(target=syncer.close)
    closer.start()
    wait_until(syncer._ending.is_set)
    assert closer.is_alive()
    leave.set()
    closer.join()
    assert lines(journal.folder / "a-0.log")[1:] == ["done 0", "synced 0"]


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.EIO, "Input/output error"), RunError("cannot write out.npy")],
    ids=["OSError", "RunError"],
)
def test_a_failed_sync_is_raised_and_what_it_was_about_is_not_trusted(
    journal: Journal, failure: OSError | RunError
) -> None:
    attempts = []

    def sync() -> None:
        attempts.append(1)
        if len(attempts) == 2:
            raise failure

    other, later = journal.log("a-1", HERE), journal.log("b-0", "n1/boot-2")
    other.done(8)
    later.done(9)
    log = journal.log("a-0", HERE)
    syncer = Syncer(log, sync, NEVER)
    syncer.done(0)
    syncer.sync()
    syncer.done(1)
    assert journal.finished({HERE}) == {0, 1, 8}
    with pytest.raises(type(failure)) as raised:
        syncer.sync()
    assert raised.value is failure
    for call in (syncer.sync, lambda: syncer.done(2), syncer.close):
        with pytest.raises(type(failure)) as raised:
            call()
        assert raised.value is failure
    assert len(attempts) == 2  # a third would have succeeded, and told nothing
    # 8 is another process's, of the same page cache and perhaps of the same failure; 9 of a later boot.
    assert journal.finished({HERE, "n1/boot-2"}) == {0, 9}
    other.synced(1)
    assert journal.finished({HERE}) == {0, 8}
    journal.remove()
    assert not journal.folder.exists()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sync_that_fails_in_the_background_is_raised_where_the_run_goes_on(journal: Journal) -> None:
    def sync() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    syncer = Syncer(journal.log("a-0", HERE), sync, seconds=0.001)
    wait_until((journal.folder / "a-0.failed").exists)

    def goes_on() -> None:
        for number in itertools.count():
            syncer.done(number)

    with pytest.raises(OSError, match="No space left"):
        goes_on()
    with pytest.raises(OSError, match="No space left"):
        syncer.close()
    assert journal.finished({HERE}) == set()


# Disks that are full or gone.


@contextmanager
def room(size: int) -> Iterator[None]:
    """Files cannot grow beyond `size` bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("spare", range(20))
def test_a_disk_that_fills_in_any_byte_of_a_line_costs_that_line(journal: Journal, spare: int) -> None:
    log = journal.log("a-0", HERE)
    log.done(0)
    log.synced(1)
    log.done(1)
    size = log.path.stat().st_size

    def fill() -> None:
        log.done(2)
        log.done(3)

    with room(size + spare), pytest.raises(RunError, match=r"cannot write .*a-0\.log: File too large"):
        fill()
    whole = {0, 1, 2} if spare >= len("01234567 done 2\n") else {0, 1}
    for call in (lambda: log.done(4), lambda: log.synced(log.count)):  # there is room again: too late
        with pytest.raises(RunError, match="File too large"):
            call()
    assert log.count == len(whole)
    assert (journal.finished({HERE}), journal.finished(())) == (whole, {0})


def test_a_full_disk_is_told_with_what_to_do(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    log = journal.log("a-0", HERE)
    log.done(0)

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError) as raised:
        log.done(1)
    monkeypatch.undo()
    assert str(raised.value) == (
        f"cannot write {log.path}: No space left on device. "
        "Try: make room, then the command with --resume: finished chunks are kept"
    )
    assert journal.finished({HERE}) == {0}


def test_a_log_that_cannot_be_made_durable_counts_as_a_failed_sync(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    syncer = Syncer(journal.log("a-0", HERE), lambda: None, NEVER)
    syncer.done(0)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(RunError, match="Input/output error"):
        syncer.sync()
    with pytest.raises(RunError, match="Input/output error"):
        syncer.done(1)


# The identity, and the journal's begin and end.


def test_an_identity_is_told_back_and_begins_anew(journal: Journal) -> None:
    assert journal.folder == journal.output.with_name("out.npy.journal")
    assert journal.kept() == IDENTITY_OF
    journal.log("a-0", HERE).done(1)
    journal.begin({"job": "other"})
    assert journal.kept() == {"job": "other"}
    assert journal.finished({HERE}) == set()
    assert os.listdir(journal.folder) == [IDENTITY]


def test_no_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.npy")
    assert journal.kept() is None
    journal.remove()
    with pytest.raises(RunError, match=r"cannot read .*No such file"):
        journal.finished({HERE})


def test_the_journal_is_removed_and_only_it(journal: Journal) -> None:
    record(journal, "a-0", HERE, [1, "synced"])
    notes = journal.folder / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(RunError, match=r"cannot remove .*not empty"):
        journal.remove()
    assert notes.read_text() == "mine"
    assert journal.kept() is None
    notes.unlink()
    journal.remove()
    assert not journal.folder.exists()


def test_logs_left_by_a_removal_cut_short_are_not_another_runs(journal: Journal) -> None:
    record(journal, "a-0", HERE, [1, "synced"])
    (journal.folder / IDENTITY).unlink()
    # And a crash in the next one's begin.
    (journal.folder / ".identity.json.0123456789abcdef.partial").write_text('{"job": "ed')
    assert journal.kept() is None
    journal.begin(IDENTITY_OF)
    assert journal.kept() == IDENTITY_OF
    assert journal.finished({HERE}) == set()


def test_an_identity_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.npy")
    journal.begin(IDENTITY_OF)
    for size in range((journal.folder / IDENTITY).stat().st_size):
        with room(size), pytest.raises(RunError, match="File too large"):
            journal.begin(IDENTITY_OF)
        assert journal.kept() is None
    journal.begin(IDENTITY_OF)
    assert journal.kept() == IDENTITY_OF


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"\0" * 20])
def test_a_broken_identity_is_a_sentence(journal: Journal, content: bytes) -> None:
    (journal.folder / IDENTITY).write_bytes(content)
    with pytest.raises(UserError) as raised:
        journal.kept()
    assert str(raised.value) == (
        f"{journal.folder}/identity.json is broken: expected a JSON object. "
        f"Try: to start from the beginning: rm -r {journal.folder}"
    )


def test_what_is_no_journal_is_a_sentence(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.npy")
    journal.folder.write_text("a file of that name")
    with pytest.raises(UserError, match=r"out\.npy\.journal .*got a file, expected a folder"):
        journal.kept()
    with pytest.raises(RunError, match="Not a directory"):
        journal.begin({})
    assert journal.folder.read_text() == "a file of that name"


def test_an_output_without_a_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot write .*/gone/out\.npy\.journal: No such file"):
        Journal(tmp_path / "gone" / "out.npy").begin({})
    with pytest.raises(RunError, match=r"cannot write .*a-0\.log: No such file"):
        Journal(tmp_path / "out.npy").log("a-0", HERE)


# Whether the run that is kept is the one wanted.

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)
identities = st.dictionaries(
    st.from_regex("[a-c]", fullmatch=True),
    values | st.dictionaries(st.from_regex("[d-e]", fullmatch=True), values, min_size=1),
)


@given(identities)
def test_an_identity_does_not_differ_from_itself_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory, identity: dict[str, Any]
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "out.npy")
    journal.begin(identity)
    kept = journal.kept()
    assert kept is not None
    assert differences(kept, identity) == []
    journal.check(kept, identity, Path("partial"))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"a": 1, "b": {"c": [1, 2], "d": "x"}}, []),
        ({"b": {"d": "x", "c": (1, 2)}, "a": 1}, []),
        ({"a": 2, "b": {"c": [1, 2], "d": "x"}}, ["a"]),
        ({"a": 1.0, "b": {"c": [1, 2], "d": "x"}}, ["a"]),
        ({"a": True, "b": {"c": [1, 2], "d": "x"}}, ["a"]),
        ({"a": 1, "b": {"c": [2, 1], "d": "y"}}, ["b.c", "b.d"]),
        ({"a": 1, "b": {"c": [1, 2]}, "e": None}, ["e", "b.d"]),
        ({"b": 1}, ["b", "a", "b.c", "b.d"]),
    ],
)
def test_differences_are_named(wanted: dict[str, Any], names: list[str]) -> None:
    assert differences({"a": 1, "b": {"c": [1, 2], "d": "x"}}, wanted) == names


def test_another_run_is_refused_with_what_differs(journal: Journal) -> None:
    wanted = {"job": "edges", "input": {"path": "in.npy", "size": 512}, "parameters": {}}
    with pytest.raises(UserError) as raised:
        journal.check(IDENTITY_OF, wanted, Path("/data/.out one.partial"))
    assert str(raised.value) == (
        f"cannot resume {journal.output}, its unfinished run differs in 2 value(s): "
        "got input.size 512, parameters.gain not given, expected input.size 384, parameters.gain 2.0. "
        "Try: the command as it was, or to start from the beginning: "
        f"rm -r {journal.folder} '/data/.out one.partial'"
    )


def test_many_differences_are_counted(journal: Journal) -> None:
    with pytest.raises(UserError) as raised:
        journal.check({str(n): 0 for n in range(9)}, {str(n): 1 for n in range(9)}, Path("p"))
    assert "differs in 9 value(s): got 0 1, 1 1, 2 1, expected 0 0, 1 0, 2 0. Try" in str(raised.value)


def test_an_unfinished_run_is_not_begun_over(journal: Journal) -> None:
    assert str(journal.unfinished(Path(".out.partial"))) == (
        f"an earlier run of {journal.output} is unfinished. Try: the same command with --resume, "
        f"or to start from the beginning: rm -r {journal.folder} .out.partial"
    )


def test_the_format_is_as_documented(journal: Journal) -> None:
    import meshrun.runner.storage.journal

    log = journal.log("a-0", "n1/5c0a2d6e")
    log.done(12)
    log.synced(1)
    assert isinstance(log, Log)
    documented = re.findall(
        r"^    ([0-9a-f]{8} .*?)  ", meshrun.runner.storage.journal.__doc__ or "", re.MULTILINE
    )
    assert log.path.read_text().splitlines() == documented
