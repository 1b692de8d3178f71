"""A run that fails at any chunk goes on with other ranks and options, to the bytes of an undisturbed one."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queued_device import QueuedBackend
from stream_cases import PoisoningHost, run_on

import meshrun
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.lock import hold
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, execute
from meshrun.runner.storage.formats.flat import FlatSink
from meshrun.runner.storage.journal import Journal
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import identify_host, single_rank_world

ROWS, COLUMNS, CHUNK = 23, 5, 2
CHUNKS = 12
BYTES = (CHUNK + 1) * COLUMNS * 4  # of a chunk with its halo
BOOT = {identify_host()[1]}
FAILING: set[int] = set()  # first rows of the chunks at which the function raises
CALLED: list[int] = []  # first rows of those that it did


@meshrun.map_blocks(halo=((1, 0), (0, 0)), boundary="wrap", split_dependent=True)
def fragile(block: Any, *, out: Any, here: meshrun.BlockContext, gain: int = 3) -> None:
    if here.offset[0] in FAILING:
        raise ZeroDivisionError("fragile")
    CALLED.append(here.offset[0])
    out[...] = gain * block[:-1] + block[1:]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("meshrun.runner.world.failure.GRACE", 0.0)
    monkeypatch.setattr(CpuBackend, "copy_rate", lambda self: 1e9)
    monkeypatch.setattr("meshrun.runner.maps.streamed.streaming.HostEngine", PoisoningHost)
    FAILING.clear()
    CALLED.clear()
    yield
    FAILING.clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.npy"
    np.save(path, np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS))
    return path


def target_of(source: Path) -> Path:
    return source.with_name("out.npy")


def go(source: Path, ranks: int = 1, job: Any = fragile, **options: Any) -> dict[str, Any]:
    return run_on(ranks, job, source, target_of(source), **{"chunk_bytes": BYTES, **options})


def fail(source: Path, *chunks: int, ranks: int = 1, **options: Any) -> set[int]:
    """Run into failures at these chunks; the chunks that are finished by then."""
    FAILING.update(CHUNK * chunk for chunk in chunks)
    with pytest.raises((ZeroDivisionError, RunError)):
        go(source, ranks, **options)
    FAILING.clear()
    return Journal(target_of(source)).finished(BOOT)


def whole(source: Path) -> bytes:
    run_on(1, fragile, source, source.with_name("whole.npy"))
    return source.with_name("whole.npy").read_bytes()


def names(source: Path) -> set[str]:
    return {path.name for path in source.parent.iterdir()}


@pytest.mark.parametrize("bad", range(CHUNKS))
@pytest.mark.parametrize("change", ["nothing", "ranks", "fewer ranks", "depth", "static"])
def test_a_run_goes_on_where_it_failed(source: Path, bad: int, change: str) -> None:
    wanted = whole(source)
    first = {"ranks": 3 if change == "fewer ranks" else 1, "depth": 1 + bad % 3}
    finished = fail(source, bad, **first)
    assert bad not in finished
    if change == "nothing" and first["depth"] == 1:
        assert finished == set(range(bad))
    CALLED.clear()
    second = first | {
        "nothing": {},
        "ranks": {"ranks": 2 + bad % 3},
        "fewer ranks": {"ranks": 2},
        "depth": {"depth": 4 - bad % 3},
        "static": {"ranks": 2, "static": True},
    }[change]  # fmt: skip
    record = go(source, resume=True, **second)
    assert target_of(source).read_bytes() == wanted
    assert record["stream"]["chunks"] == CHUNKS
    assert record["stream"]["resumed"] == len(finished)
    assert sorted(CALLED) == [CHUNK * chunk for chunk in range(CHUNKS) if chunk not in finished]
    assert names(source) == {"in.npy", "out.npy", "whole.npy"}


def test_a_run_goes_on_again_and_again(source: Path) -> None:
    finished: set[int] = set()
    for ranks in (1, 2, 3):
        left = [chunk for chunk in range(CHUNKS) if chunk not in finished]
        now = fail(source, left[len(left) // 2], ranks=ranks, resume=True)
        assert now >= finished
        finished = now
    record = go(source, resume=True)
    assert record["stream"]["resumed"] == len(finished)
    assert target_of(source).read_bytes() == whole(source)


def test_two_ranks_that_fail_leave_what_both_had_finished(source: Path) -> None:
    finished = fail(source, 3, 10, ranks=2, static=True, depth=1)
    assert finished <= {0, 1, 2, 6, 7, 8, 9}
    go(source, resume=True)
    assert target_of(source).read_bytes() == whole(source)


def test_the_chunks_of_the_first_run_are_kept(source: Path) -> None:
    fail(source, 4)
    record = go(source, resume=True, chunk_bytes=10 * BYTES)
    assert (record["stream"]["rows"], record["stream"]["chunks"]) == (CHUNK, CHUNKS)


@pytest.mark.parametrize("grid", ["2", "1x2", "2x2"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_run_with_a_grid_goes_on_with_any_number_of_ranks(source: Path, grid: str, ranks: int) -> None:
    wanted = whole(source)
    blocks = int(np.prod([int(n) for n in grid.split("x")]))
    FAILING.update(range(8, ROWS))
    with pytest.raises((ZeroDivisionError, RunError)):
        go(source, blocks, grid=grid)
    FAILING.clear()
    record = go(source, ranks, grid=grid, resume=True, verify="full")
    assert record["verify"]["cells"] == ROWS * COLUMNS
    assert target_of(source).read_bytes() == wanted


def test_without_resume_an_unfinished_run_is_in_the_way(source: Path) -> None:
    finished = fail(source, 5)
    before = names(source)
    with pytest.raises(UserError) as refusal:
        go(source)
    journal, partial = source.with_name("out.npy.journal"), source.with_name(".out.npy.stream.partial")
    assert str(refusal.value) == (
        f"an earlier run of {target_of(source)} is unfinished. Try: the same command with --resume, or to "
        f"start from the beginning: rm -r {journal} {partial}"
    )
    assert names(source) == before
    assert Journal(target_of(source)).finished(BOOT) == finished


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_finished_no_chunk_is_in_nobodys_way(source: Path, resume: bool) -> None:
    assert fail(source, *range(CHUNKS)) == set()  # later ones may be done before the first one fails
    record = go(source, resume=resume, parameters={"gain": 4})
    assert record["stream"]["resumed"] == 0
    wide = np.load(source)
    np.testing.assert_array_equal(np.load(target_of(source)), 4 * np.roll(wide, 1, axis=0) + wide)
    assert names(source) == {"in.npy", "out.npy"}


def test_after_the_command_that_the_sentence_names_a_run_begins_anew(source: Path) -> None:
    fail(source, 5)
    os.system(f"rm -r {source.with_name('out.npy.journal')} {source.with_name('.out.npy.stream.partial')}")
    assert go(source)["stream"]["resumed"] == 0
    assert target_of(source).read_bytes() == whole(source)


def test_resume_where_nothing_is_unfinished_begins(source: Path) -> None:
    record = go(source, resume=True)
    assert (record["stream"]["resumed"], record["stream"]["chunks"]) == (0, CHUNKS)
    assert target_of(source).read_bytes() == whole(source)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"parameters": {"gain": 4}}, "parameters.gain 4, expected parameters.gain 3"),
        ({"boundary": "nearest"}, 'boundary "nearest", expected boundary "wrap"'),
        ({"boundary": "constant", "cval": 1.0}, 'cval 1.0, expected boundary "wrap", cval 0.0'),
        ({"grid": "1x1x1"}, "more axes"),
        ({"grid": "2", "ranks": 2}, "grid "),
    ],
)
def test_another_run_is_refused_with_what_differs(source: Path, change: Any, named: str) -> None:
    wanted = whole(source)
    finished = fail(source, 5)
    with pytest.raises(UserError) as refusal:
        go(source, resume=True, **change)
    assert named in str(refusal.value)
    assert Journal(target_of(source)).finished(BOOT) == finished
    go(source, resume=True)
    assert target_of(source).read_bytes() == wanted


def test_another_input_is_refused(source: Path) -> None:
    fail(source, 5)
    os.utime(source, ns=(0, 1))
    with pytest.raises(UserError, match=r"differs in 1 value.*inputs.block.changed_ns 1"):
        go(source, resume=True)


def test_an_unfinished_output_that_is_gone_is_told(source: Path) -> None:
    fail(source, 5)
    source.with_name(".out.npy.stream.partial").unlink()
    with pytest.raises(UserError, match=r"the unfinished output .* is gone.*rm -r .*out.npy.journal"):
        go(source, resume=True)


def test_a_run_that_ended_before_its_journal_was_there_is_not_in_the_way(source: Path) -> None:
    source.with_name(".out.npy.stream.partial").write_bytes(b"half a header")
    go(source)
    assert target_of(source).read_bytes() == whole(source)


def test_the_output_of_an_earlier_run_stays_until_the_end(source: Path) -> None:
    target_of(source).write_bytes(b"old")
    fail(source, 11)
    assert target_of(source).read_bytes() == b"old"
    go(source, resume=True)
    assert target_of(source).read_bytes() == whole(source)


def test_a_run_whose_chunks_are_all_finished_only_gives_the_output_its_name(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise RunError("no name", everywhere=True)

    with monkeypatch.context() as patch:
        patch.setattr("meshrun.runner.maps.streamed.streaming.check_inputs", full)
        with pytest.raises(RunError, match="no name"):
            go(source)
    CALLED.clear()
    assert go(source, 2, resume=True)["stream"]["resumed"] == CHUNKS
    assert CALLED == []
    assert target_of(source).read_bytes() == whole(source)


@pytest.mark.parametrize("bad", [5, 11])
@pytest.mark.parametrize("late", [False, True])
def test_a_run_on_a_device_goes_on(source: Path, bad: int, late: bool) -> None:
    wanted = whole(source)
    finished = fail(source, bad, devices=[QueuedBackend(late=late)])
    with pytest.raises(UserError, match='device "cpu", expected device "queued"'):
        go(source, resume=True)
    assert go(source, resume=True, devices=[QueuedBackend(late=late)])["stream"]["resumed"] == len(finished)
    assert target_of(source).read_bytes() == wanted


# ---- what a run that ends badly says of what it leaves


def failed_run(source: Path, job: Any) -> OutputTransaction:
    """The output of a run of this rank alone that fails."""
    transaction = OutputTransaction()
    options = Options(stream=StreamOptions(chunk_bytes=BYTES))
    with pytest.raises((ZeroDivisionError, RunError)):
        execute(
            single_rank_world(CpuBackend()),
            job,
            source,
            target_of(source),
            {},
            options,
            transaction=transaction,
        )
    transaction.release()  # as the end of its process does
    return transaction


def test_what_is_kept_is_said(source: Path) -> None:
    FAILING.add(2)
    transaction = failed_run(source, fragile)
    assert transaction.recovery_hint is not None
    assert "--resume" in transaction.recovery_hint
    assert transaction.partials == (), "the unfinished output would be removed"


def test_an_input_that_changes_while_it_is_read_is_told_and_nothing_is_said_to_be_kept(source: Path) -> None:
    @meshrun.map_blocks
    def touching(block: Any, *, out: Any) -> None:
        out[...] = block
        os.utime(source, ns=(0, time.time_ns()))

    transaction = failed_run(source, touching)
    with pytest.raises(UserError, match=r"inputs\.block\.changed_ns"):
        go(source, job=touching, resume=True)
    assert transaction.recovery_hint is None, "the same command with --resume is refused"


def test_an_input_that_changes_while_it_is_read_is_named(source: Path) -> None:
    @meshrun.map_blocks
    def growing(block: Any, *, out: Any) -> None:
        out[...] = block
        with open(source, "ab") as file:
            file.write(b"more")

    with pytest.raises(RunError, match=r"in\.npy changed while it was read"):
        go(source, 2, job=growing)
    assert not target_of(source).exists()


# ---- two runs, and what an earlier one has left


def test_two_runs_do_not_write_one_output(source: Path) -> None:
    with_lock = hold(target_of(source))
    with pytest.raises(UserError, match=r"another run is writing .*out\.npy"):
        go(source)
    with_lock()
    go(source)
    assert target_of(source).read_bytes() == whole(source)
    assert sorted(path.name for path in source.parent.iterdir()) == ["in.npy", "out.npy", "whole.npy"]


def test_a_lock_that_its_holder_removes_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    first = hold(tmp_path / "out.npy")
    first()
    second = hold(tmp_path / "out.npy")
    with pytest.raises(UserError):
        hold(tmp_path / "out.npy")
    second()


def test_a_run_in_one_piece_does_not_ignore_an_unfinished_one(source: Path) -> None:
    fail(source, 3)
    with pytest.raises(UserError, match="unfinished"):
        run_on(1, fragile, source, target_of(source))


def test_what_a_failed_sync_may_have_lost_is_not_believed_by_a_third_run(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells once of pages that it could not write: to the second run, before it writes itself."""
    assert fail(source, 8)
    real, failures = FlatSink.sync, [OSError(errno.EIO, "Input/output error")]

    def once(self: FlatSink) -> None:
        if failures:
            raise failures.pop()
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(FlatSink, "sync", once)
        with pytest.raises((OSError, RunError)):
            go(source, resume=True)
    assert Journal(target_of(source)).finished(BOOT) == set()
    assert go(source, resume=True)["stream"]["resumed"] == 0
    assert target_of(source).read_bytes() == whole(source)


def test_a_result_that_is_proven_wrong_is_not_to_be_resumed(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any, **options: Any) -> None:
        raise RunError("verification failed", everywhere=True)

    monkeypatch.setattr("meshrun.runner.run.verify.results.verify", wrong)
    transaction = OutputTransaction()
    options = Options(stream=StreamOptions(chunk_bytes=BYTES), verify="sample")
    with pytest.raises(RunError):
        execute(
            single_rank_world(CpuBackend()),
            fragile,
            source,
            target_of(source),
            {},
            options,
            transaction=transaction,
        )
    transaction.release()
    assert transaction.recovery_hint is not None
    assert "to start from the beginning: rm -r" in transaction.recovery_hint


def test_a_journal_without_an_output_and_without_chunks_is_begun_anew(source: Path) -> None:
    """A run that was killed while it began."""
    assert fail(source, *range(CHUNKS)) == set()
    (partial,) = source.parent.glob(".out.npy.*.partial")
    partial.unlink()
    assert go(source, resume=True)["stream"]["resumed"] == 0
    assert target_of(source).read_bytes() == whole(source)


# ---- what somebody else has put where an unfinished output would be


PARTIAL, JOURNAL = ".out.npy.stream.partial", "out.npy.journal"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "elsewhere" / "victim"
    path.parent.mkdir()
    path.write_bytes(b"x" * 4096)
    yield path
    assert path.read_bytes() == b"x" * 4096
    assert os.listdir(path.parent) == ["victim"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_place_of_the_unfinished_output_is_not_written_through(
    source: Path, victim: Path, link: Any
) -> None:
    fail(source, 5)
    partial = source.with_name(PARTIAL)
    partial.unlink()
    link(victim, partial)
    with pytest.raises(UserError, match=r"\.out\.npy\.stream\.partial is not of a run of yours: got a .*rm"):
        go(source, resume=True)
    assert not target_of(source).exists()


def test_a_link_is_replaced_where_nothing_is_to_be_resumed(source: Path, victim: Path) -> None:
    source.with_name(PARTIAL).symlink_to(victim)
    go(source, resume=True)
    assert target_of(source).read_bytes() == whole(source)


def test_a_journal_of_somebody_else_is_not_believed(source: Path, tmp_path: Path) -> None:
    fail(source, 5)
    source.with_name(JOURNAL).rename(tmp_path / "theirs")
    source.with_name(JOURNAL).symlink_to(tmp_path / "theirs")
    for more in ({}, {"resume": True}):
        with pytest.raises(UserError, match=r"out\.npy\.journal is not of a run of yours: got a link to"):
            go(source, **more)
    with pytest.raises(UserError, match="not of a run of yours"):
        run_on(1, fragile, source, target_of(source))
    assert (tmp_path / "theirs" / "identity.json").exists()


@pytest.mark.parametrize("what", ["another shape", "another dtype", "no array"])
def test_an_unfinished_output_of_another_form_is_refused(source: Path, what: str) -> None:
    fail(source, 5)
    partial = source.with_name(PARTIAL)
    with partial.open("wb") as file:
        if what == "no array":
            file.write(b"x" * 4096)
        else:
            columns, dtype = (COLUMNS + 1, "f4") if what == "another shape" else (COLUMNS, "i4")
            np.save(file, np.zeros((ROWS, columns), dtype))
    with pytest.raises(UserError, match=r"partial was not left by an unfinished run of this job: .*rm"):
        go(source, resume=True)
    assert not target_of(source).exists()


def test_a_link_in_an_unfinished_store_is_not_written_through(source: Path, victim: Path) -> None:
    pytest.importorskip("zarr")
    target = source.with_name("out.zarr")
    FAILING.add(0)
    with pytest.raises((ZeroDivisionError, RunError)):
        run_on(1, fragile, source, target, depth=1)
    FAILING.clear()
    log = Journal(target).log("another-0", "another/boot")  # a chunk of a host that is not here
    log.done(0)
    log.close()
    store = source.with_name(".out.zarr.stream.partial")
    (store / "c").mkdir(exist_ok=True)
    (store / "c" / "planted").symlink_to(victim)
    with pytest.raises(UserError, match=r"/c/planted is not of a run of yours: got a link to"):
        run_on(1, fragile, source, target, depth=1, resume=True)


PLAIN = {"chunk_bytes": CHUNK * COLUMNS * 4}  # of a chunk without halo


def scaled(by: Any) -> Any:
    @meshrun.map_blocks
    def scale(block: Any, *, out: Any, here: meshrun.BlockContext) -> None:
        if here.offset[0] in FAILING:
            raise ZeroDivisionError("scale")
        out[...] = block * by

    return scale


def test_a_function_that_captured_another_value_is_another_run(source: Path) -> None:
    assert 0 < len(fail(source, 5, job=scaled(2.0), **PLAIN)) < CHUNKS
    with pytest.raises(UserError, match=r'got captured\.by "3\.0", expected captured\.by "2\.0"'):
        go(source, job=scaled(3.0), resume=True, **PLAIN)
    assert go(source, job=scaled(2.0), resume=True, **PLAIN)["stream"]["resumed"] > 0


def test_a_captured_value_that_a_journal_does_not_know_is_named(source: Path) -> None:
    fail(source, 5, job=scaled(Odd(2.0)), **PLAIN)
    record = go(source, 2, job=scaled(Odd(2.0)), resume=True, **PLAIN)
    assert record["warnings"] == [
        "job scale uses by (an object of Odd): it is not known whether the unfinished run, which is resumed, "
        "had the same"
    ]


class Odd(np.ndarray):
    """An array that may hold more than its elements."""

    def __new__(cls, value: float) -> Odd:
        return np.array(value).view(cls)
