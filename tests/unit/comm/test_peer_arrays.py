"""Arrays that other ranks open, and recorded device work, over a made-up CuPy: no GPU needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import over_cupy
import pytest

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.peer_memory import PAGE, Unreachable
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.api import Device, NotCapturable
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.steps import halo_path

GPUS = [Device("cuda", "a GPU", index, uuid=f"GPU-{index}") for index in range(2)]


class CudaError(RuntimeError):
    """In place of CuPy's."""


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = MagicMock()
    made.cuda.runtime.CUDARuntimeError = CudaError
    for name, module in (("cupy", made), ("cupy.cuda", made.cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    over_cupy.forget()
    yield made
    over_cupy.forget()


class Box:
    """The GPUs that a process sees. shut: the calls that fail."""

    def __init__(self, seen: list[int], shut: str) -> None:
        self.gpus = [SimpleNamespace(index=place, uuid=f"GPU-{gpu}") for place, gpu in enumerate(seen)]
        self.shut, self.released = shut, list[int]()

    @contextmanager
    def on(self, gpu: int) -> Any:
        yield

    def connect(self, gpu: int, peer: int) -> bool:
        if self.shut == "connect":
            raise CudaError("peer access is not supported\nmore")
        return self.shut != "refused"

    def export(self, memory: Memory) -> bytes:
        if self.shut == "export":
            raise CudaError("operation not supported\nmore")
        return b"%d" % memory.address

    def attach(self, token: bytes, nbytes: int, gpu: int) -> Memory:
        if self.shut == "attach":
            raise CudaError("invalid device context\nmore")
        return Memory(int(token) + 7, nbytes, "device", gpu)

    def release(self, memory: Memory) -> None:
        self.released.append(memory.address)


def opened(cupy: Any, shut: str = "", seen: tuple[int, ...] = (0, 1)) -> list[Any]:
    """On two ranks: the neighbour's addresses or why there are none, and what is released in the end."""
    from meshrun.runner.comm.peer_arrays import PeerArrays

    def body(control: ThreadComm) -> Any:
        own: Control = control
        peers = PeerArrays(own, GPUS)
        box: Any = Box(list(seen), shut)
        peers.__dict__["_box"] = box
        arrays = [
            SimpleNamespace(data=SimpleNamespace(ptr=1000 * (control.rank + 1) + n), nbytes=8)
            for n in range(2)
        ]
        try:
            found: Any = peers.open(arrays, [1 - control.rank])
        except Unreachable as reason:
            found = str(reason)
        peers.close()
        return found, box.released

    return run_ranks(2, body)


def test_a_neighbours_arrays_are_opened_in_their_order_and_closed(cupy: Any) -> None:
    for rank, (found, released) in enumerate(opened(cupy)):
        there = 1000 * (2 - rank) + 7
        assert found == {1 - rank: [there, there + 1]}
        assert released == [there, there + 1]


@pytest.mark.parametrize(
    ("shut", "seen", "reason"),
    [
        ("", (1,), "rank 1's process does not see rank 0's GPU"),
        ("refused", (0, 1), "rank 1 cannot open rank 0's memory: no peer access between their GPUs"),
        ("connect", (0, 1), "rank 1 cannot open rank 0's memory: peer access is not supported"),
        ("export", (0, 1), "rank 1 cannot open rank 0's memory: operation not supported"),
        ("attach", (0, 1), "rank 1 cannot open rank 0's memory: invalid device context"),
    ],
)
def test_the_reason_names_both_ranks(cupy: Any, shut: str, seen: tuple[int, ...], reason: str) -> None:
    assert opened(cupy, shut, seen)[1][0] == reason


def test_a_process_that_cannot_look_for_gpus_says_so_on_every_rank(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a block is allocated: --halo auto exchanges messages then, --halo direct is refused."""
    from meshrun.runner.comm import peer_arrays

    def box() -> Any:
        if threading.current_thread() is not blind:
            return Box([0, 1], "")
        raise CudaError("the driver is gone\nmore")

    monkeypatch.setattr(peer_arrays, "Box", box)
    blind: Any = None

    def body(control: ThreadComm) -> Any:
        nonlocal blind
        if control.rank == 1:
            blind = threading.current_thread()
        ranks = tuple(SimpleNamespace(device=gpu) for gpu in GPUS)
        world: Any = SimpleNamespace(
            control=control,
            ranks=ranks,
            here=SimpleNamespace(device=GPUS[control.rank]),
            hosts=["n1"],
            checksums=None,
        )
        found = [halo_path.find_peers(world, choice, 2) for choice in ("direct", "nccl")]
        world.checksums = object()
        return [*found, halo_path.find_peers(world, "direct", 2)]

    for found in run_ranks(2, body):
        assert found == [
            "rank 1 cannot look for GPUs: the driver is gone",
            "--halo nccl",
            "--checksum, which checks messages",
        ]


def test_an_array_has_whole_pages_of_its_own(cupy: Any) -> None:
    from meshrun.runner.comm.peer_arrays import PeerArrays

    PeerArrays(ThreadComm(), GPUS[:1]).empty((PAGE // 4 + 1,), np.dtype(np.float32))
    cupy.cuda.Memory.assert_called_once_with(2 * PAGE)
    assert cupy.ndarray.call_args[0][:2] == ((PAGE // 4 + 1,), np.float32)


def recorded(cupy: Any, work: Any, *, broken: bool = False) -> Any:
    from meshrun.runner.device.cuda_graphs import capture

    stream = cupy.cuda.get_current_stream()
    stream.end_capture.side_effect = CudaError("invalidated") if broken else None
    refusing = []

    @contextmanager
    def using(allocator: Any) -> Any:
        refusing.append(allocator)
        yield

    cupy.cuda.using_allocator = using
    return capture(lambda: work(refusing[0])), stream


def test_recorded_work_is_launched_on_its_stream(cupy: Any) -> None:
    replay, stream = recorded(cupy, lambda allocate: None)
    graph = stream.end_capture.return_value
    graph.launch.assert_not_called()
    replay()
    graph.launch.assert_called_once_with(stream)


def test_work_that_allocates_is_not_recorded(cupy: Any) -> None:
    with pytest.raises(NotCapturable, match="allocates device memory"):
        recorded(cupy, lambda allocate: allocate(100))
    cupy.cuda.get_current_stream().end_capture.assert_called_once()


def test_work_that_waits_is_not_recorded(cupy: Any) -> None:
    def wait(_: Any) -> None:
        raise CudaError("operation not permitted when stream is capturing")

    with pytest.raises(NotCapturable, match=r"waits for the device .*not permitted"):
        recorded(cupy, wait, broken=True)


def test_work_whose_copy_to_the_host_cupy_refuses_is_not_recorded(cupy: Any) -> None:
    def read(_: Any) -> None:
        raise RuntimeError("the current stream is capturing, so D2H transfers are disallowed")

    with pytest.raises(NotCapturable, match=r"waits for the device .*D2H"):
        recorded(cupy, read)


def test_a_recording_that_breaks_in_silence_is_refused(cupy: Any) -> None:
    with pytest.raises(NotCapturable, match="cannot hold"):
        recorded(cupy, lambda allocate: None, broken=True)


def test_another_error_of_the_work_stays_what_it_is(cupy: Any) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("their own")

    with pytest.raises(RuntimeError, match="their own"):
        recorded(cupy, fail, broken=True)
