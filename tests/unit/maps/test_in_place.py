"""A function may change its block in place: what it is given is its own, on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queued_device import QueuedBackend
from stream_cases import run_on

import meshrun
from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.run.installation.mutations import MUTATIONS, Mutation
from meshrun.runner.run.installation.selftest import caught

HALO = ((2, 1), (1, 1))
ARRAY = (np.arange(61 * 13, dtype=np.int64) * 37 % 101).reshape(61, 13)


def sums(block: Any) -> Any:
    """Of four neighbours, each with a factor of its own."""
    return block[:-3, 1:-1] + 2 * block[3:, 1:-1] + 3 * block[2:-1, :-2] + 5 * block[2:-1, 2:]


@meshrun.map_blocks(halo=HALO)
def doubled_sums(block: Any) -> Any:
    block *= 2
    return sums(block)


@meshrun.map_blocks(halo=HALO)
def doubled_view(block: Any) -> Any:
    block *= 2
    return block[2:-1, 1:-1]


@meshrun.map_blocks(halo=HALO)
def doubled_out(block: Any, *, out: Any) -> None:
    out[...] = sums(block)
    out *= 2
    block[...] = -1


@meshrun.map_blocks
def doubled(block: Any) -> Any:
    block *= 2
    return block


PADDED = np.pad(ARRAY, HALO, mode="symmetric")
JOBS = {
    "new array": (doubled_sums, 2 * sums(PADDED)),
    "view": (doubled_view, 2 * ARRAY),
    "out": (doubled_out, 2 * sums(PADDED)),
    "no halo": (doubled, 2 * ARRAY),
}


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's slabs of 12 rows, so that an array of 61 rows has several."""
    monkeypatch.setattr("meshrun.runner.maps.in_memory.SLAB", 12 * 13 * 8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.save(tmp_path / "in.npy", ARRAY)
    return tmp_path / "in.npy"


def check(name: str, source: Path, ranks: int, devices: bool = False, **options: Any) -> None:
    job, expected = JOBS[name]
    queues = [QueuedBackend() for _ in range(ranks)] if devices else None
    target = source.with_name("out.npy")
    run_on(ranks, job, source, target, devices=queues, verify="full", **options)
    np.testing.assert_array_equal(np.load(target), expected)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("devices", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (3, {"overlap": False}),
        (3, {"overlap": True}),
        (4, {"grid": "2x2"}),
        (2, {"chunk_bytes": 33 * 15 * 8}),
    ],
    ids=["one rank", "exchange first", "overlap", "2x2", "streamed"],
)
def test_a_run(source: Path, name: str, devices: bool, ranks: int, options: dict[str, Any]) -> None:
    check(name, source, ranks, devices, **options)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("devices", [False, True], ids=["cpu", "device"])
def test_a_folder_of_images(tmp_path: Path, name: str, devices: bool) -> None:
    job, expected = JOBS[name]
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", ARRAY)
    queues = [QueuedBackend()] if devices else None
    run_on(1, job, tmp_path / "in", tmp_path / "out", devices=queues, verify="full")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "a.npy"), expected)


@pytest.mark.parametrize("name", JOBS)
def test_an_array_in_memory_stays_as_it_was(name: str) -> None:
    job, expected = JOBS[name]
    array = ARRAY.copy()
    np.testing.assert_array_equal(job(array), expected)
    np.testing.assert_array_equal(array, ARRAY)


def test_what_is_sent_to_other_ranks_is_as_it_was_read(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that are read when they are waited for, as those of MPI may be."""
    post = ThreadComm.exchange

    def late(comm: ThreadComm, sends: Any, receives: Any) -> Any:
        class Later:
            def wait(self) -> None:
                post(comm, sends, receives).wait()

        return Later()

    monkeypatch.setattr(ThreadComm, "exchange", late)
    check("new array", source, 3, overlap=True)


def test_a_reduction_by_a_function_that_sorts_its_block(source: Path) -> None:
    @meshrun.reduce_blocks(combine=lambda a, b: a + b)
    def least(block: Any) -> Any:
        block.sort(axis=None) if block.ndim == 1 else block.reshape(-1).sort()
        return block.reshape(-1)[:1]

    array = ARRAY.copy()
    assert least(array) == [0]
    np.testing.assert_array_equal(array, ARRAY)


def test_a_job_cannot_change_the_callers_array() -> None:
    @meshrun.job
    def clear(world: Any, input: Any) -> Any:
        input.array[...] = 0

    array = ARRAY.copy()
    with pytest.raises(ValueError, match="read-only"):
        clear(array)
    np.testing.assert_array_equal(array, ARRAY)


@pytest.mark.parametrize(
    "mutation", [one for one in MUTATIONS if one.kind == "in place"], ids=lambda m: m.name
)
def test_verification_notices_a_runner_that_does_otherwise(mutation: Mutation) -> None:
    assert caught(mutation) is not None


@pytest.mark.parametrize("devices", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_cell_is_computed_twice(source: Path, devices: bool, overlap: bool) -> None:
    """Nor is what a function prints there twice."""
    cells = []

    @meshrun.map_blocks(halo=HALO, split_dependent=True)
    def counted(block: Any, *, here: meshrun.BlockContext) -> Any:
        cells.append(np.prod(here.block))
        return sums(block)

    queues = [QueuedBackend() for _ in range(2)] if devices else None
    run_on(2, counted, source, source.with_name("out.npy"), devices=queues, overlap=overlap)
    assert sum(cells) == ARRAY.size


@pytest.mark.parametrize("devices", [False, True], ids=["cpu", "device"])
def test_a_streamed_run_prints_once_for_each_cell(
    source: Path, devices: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the function is tried before the work, what it prints then is not shown."""

    @meshrun.map_blocks
    def told(block: Any, *, here: meshrun.BlockContext) -> Any:
        print(f"rows from {here.offset[0]}")
        return block

    queues = [QueuedBackend()] if devices else None
    run_on(1, told, source, source.with_name("out.npy"), devices=queues, chunk_bytes=13 * 13 * 8)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines)) >= 5


def test_what_a_function_prints_before_it_fails_is_shown(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @meshrun.map_blocks
    def fails(block: Any) -> Any:
        print("so far")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_on(1, fails, source, source.with_name("out.npy"), chunk_bytes=13 * 13 * 8)
    assert capsys.readouterr().out == "so far\n"
