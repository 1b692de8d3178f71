"""The kernel that stores a transpose into other ranks' memory, launched on the host by ranks as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_cases import part, same, whole
from stream_cases import run_on
from thread_peers import ThreadPeers

import meshrun.jobs.kernels
from meshrun.jobs.transforms import transpose_job
from meshrun.jobs.transforms.direct import DirectTranspose, open_direct
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World, open_world

pytestmark = pytest.mark.usefixtures("one_kernel_at_a_time")


@pytest.fixture
def one_kernel_at_a_time(kernels_on_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's kernels have one grid for all threads."""
    lock, load = threading.Lock(), meshrun.jobs.kernels.load

    def locked(file: str, instance: str) -> Callable[..., None]:
        kernel = load(f"{file}.cu", instance, ())

        def launch(*arguments: Any) -> None:
            with lock:
                kernel(*arguments)

        return launch

    monkeypatch.setattr(meshrun.jobs.kernels, "load", locked)


def on_ranks(ranks: int, case: Callable[[World], Any]) -> list[Any]:
    return run_ranks(ranks, lambda comm: case(open_world("cpu", control=comm)))


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["int16", "float32", "complex64"])
def test_it_is_the_transpose(ranks: int, dtype: str) -> None:
    """One object for matrices of several sizes, also with fewer rows or columns than ranks."""
    shapes = [(70, 101), (33, 64), (1, 40), (40, 1), (2, 3)]

    def case(world: World) -> None:
        transpose = DirectTranspose(world, 70, 101, 1, np.dtype(dtype), ThreadPeers(world))
        for shape in shapes:
            array = whole(shape, dtype)
            got = transpose(np.ascontiguousarray(part(array, world, 0)), *shape)
            same(got, part(array.T, world, 0))
            world.control.barrier()  # before the next one overwrites it
        transpose.close()

    on_ranks(ranks, case)


def test_ranks_wait_for_each_other_before_and_after_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the first, stores would meet a result in use; without the second, it is read too early."""
    events: list[str] = []
    reduce, load = ThreadComm.all_reduce, meshrun.jobs.kernels.load

    def noted(self: ThreadComm, array: Any, operation: Any) -> None:
        events.append(f"{self.rank} waits")
        reduce(self, array, operation)

    def loaded(*words: str) -> Callable[..., None]:
        kernel = load(*words)
        return lambda *arguments: (events.append("store"), kernel(*arguments))[1]

    monkeypatch.setattr(ThreadComm, "all_reduce", noted)
    monkeypatch.setattr(meshrun.jobs.kernels, "load", loaded)

    def case(world: World) -> None:
        transpose = DirectTranspose(world, 8, 8, 1, np.dtype("f4"), ThreadPeers(world))
        transpose(part(whole((8, 8), "float32"), world, 0).copy(), 8, 8)

    on_ranks(2, case)
    assert sorted(events[:2]) == ["0 waits", "1 waits"]
    assert events.count("store") == 2
    assert all(events.count(f"{rank} waits") == 2 for rank in range(2))
    assert events[-1].endswith("waits")


def test_why_it_is_not_possible() -> None:
    def case(world: World) -> None:
        def reason(
            shape: tuple[int, ...], order: tuple[int, ...], dtype: str = "float32", **more: Any
        ) -> str:
            found = open_direct(world, shape, np.dtype(dtype), order, **more)
            assert isinstance(found, str)
            return found

        assert reason((8, 8), (1, 0)) == "the ranks compute on CPUs"
        assert "no transpose of one matrix" in reason((8, 8, 4), (2, 1, 0))
        assert "no transpose of one matrix" in reason((8, 8, 4), (2, 0, 1))  # rows are two axes
        assert reason((8, 8), (1, 0), "complex128") == "elements of 16 bytes"
        closed = ThreadPeers.closed
        blind = reason((8, 8), (1, 0), peers=ThreadPeers(world, blind=(1,)))
        assert blind == "rank 1 cannot open rank 0's memory"
        world.control.barrier()
        assert ThreadPeers.closed == closed + 2

    on_ranks(2, case)
    on_ranks(1, lambda world: open_direct(world, (8, 8), np.dtype("f4"), (1, 0)))


@pytest.mark.parametrize(
    ("shape", "axes"), [((150, 1300), "1,0"), ((150, 26, 50), "1,2,0"), ((2, 40000), "1,0")]
)
def test_a_job_from_file_to_file(
    tmp_path: Path, shape: tuple[int, ...], axes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several passes, one of them with fewer rows."""
    monkeypatch.setattr(
        transpose_job, "open_direct", lambda world, *more: open_direct(world, *more, ThreadPeers(world))
    )
    array = whole(shape)
    np.save(tmp_path / "in.npy", array)
    record = run_on(
        3, transpose_job.transpose_job, tmp_path / "in.npy", tmp_path / "out.npy",
        parameters={"axes": axes, "exchange": "direct"}, verify="full", host_memory=1 << 18,
    )  # fmt: skip
    assert record["result"]["exchange"] == "direct"
    assert record["result"]["passes"] > 1
    same(np.load(tmp_path / "out.npy"), array.transpose([int(axis) for axis in axes.split(",")]))


def test_the_job_says_why_it_cannot(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", whole((6, 6)))
    with pytest.raises(
        UserError, match="--exchange direct is not possible here: got the ranks compute on CPUs"
    ):
        run_on(
            2, transpose_job.transpose_job, tmp_path / "in.npy", tmp_path / "out.npy",
            parameters={"exchange": "direct"},
        )  # fmt: skip
