"""Plans of Fourier transforms: NumPy transforms as cuFFT's plans do, and ranks are threads."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import host_kernels
import numpy as np
import pytest
import transform_cases as cases
from host_copies import HostCopies, Queue
from nvrtc_log import done
from thread_peers import ThreadPeers

import meshrun.jobs.kernels
from meshrun.jobs.transforms import direct, direct_fourier, fourier_plan
from meshrun.jobs.transforms.direct_fourier import (
    BatchLayout,
    DirectFourier,
    Execute,
    device_plan,
    is_compact,
    problem_of,
)
from meshrun.jobs.transforms.fourier_plan import FourierPlan, open_direct_fourier
from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World, open_world

Array = np.ndarray[Any, Any]
Late = Callable[[int], None]


class HostPlans:
    """`Planner` on the host. late: is called with the rank before each transform."""

    def __init__(self, copies: Callable[[], HostCopies], late: Late) -> None:
        self.copies, self.late = copies, late

    def __call__(self, layout: BatchLayout, dtype: np.dtype[Any], inverse: bool, factor: float) -> Execute:
        axes = tuple(range(1, 1 + len(layout.shape)))
        work = np.fft.ifftn if inverse else np.fft.fftn

        def execute(source: Array, out: Array) -> None:
            copies = self.copies()
            self.late(copies.world.rank)
            assert source.dtype == out.dtype == dtype
            given, found = (cells(one, layout, n) for n, one in enumerate((source, out)))
            found[...] = factor * work(given, axes=axes, norm="forward" if inverse else "backward")
            copies.issued += 1

        return execute


def cells(array: Array, layout: BatchLayout, side: int) -> Array:
    """The transforms of a layout, (batch, *shape), in the source (side 0) or in the result (1)."""
    strides = [layout.strides[side]]
    for length in reversed(layout.shape[1:]):
        strides.insert(0, strides[0] * length)
    size = array.itemsize
    found = np.lib.stride_tricks.as_strided(
        array, (layout.batch, *layout.shape), [size * n for n in (layout.distance, *strides)]
    )
    last = sum((n - 1) * stride for n, stride in zip(found.shape, found.strides, strict=True))
    assert last < array.nbytes
    return found


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshrun.jobs.kernels, "address", lambda array: array.ctypes.data)


def on_ranks(ranks: int, case: Callable[[World], Any]) -> list[Any]:
    return run_ranks(ranks, lambda comm: case(open_world("cpu", control=comm)), timeout=60)


def in_time(_: int) -> None:
    """No rank is late."""


def opened(
    world: World,
    shape: tuple[int, ...],
    dtype: str,
    norm: Any,
    queue: Queue | None = None,
    late: Late = in_time,
    compact: bool | None = None,
) -> DirectFourier | str:
    made: list[HostCopies] = []

    def copies(world: World) -> HostCopies:
        made.append(HostCopies(world, queue))
        return made[0]

    scales = fourier_plan._scales(shape, norm)
    plans = HostPlans(lambda: made[0], late)
    about = (world, shape, np.dtype(dtype), scales)
    return open_direct_fourier(*about, ThreadPeers(world), plans, copies, compact)


def transforms(
    ranks: int,
    shape: tuple[int, ...],
    dtype: str,
    norm: Any,
    lazy: bool,
    late: Late = in_time,
    compact: bool = False,
) -> None:
    queue = Queue() if lazy else None

    def case(world: World) -> None:
        found = opened(world, shape, dtype, norm, queue, late, compact)
        assert isinstance(found, DirectFourier)
        for _ in range(2):
            cases.plan_goes_there_and_back(world, found, shape=shape, dtype=dtype, norm=norm, turns=2)
        found.close()

    on_ranks(ranks, case)


CASES = [
    (2, (5, 7), "complex64", "backward"),
    (2, (37, 41), "complex64", "forward"),
    (3, (7, 5, 4), "complex128", "ortho"),
    (3, (29, 31, 2), "complex128", "backward"),
    (5, (11, 50, 3), "complex64", "ortho"),
    (3, (3, 3, 2, 2), "complex64", "forward"),
    (2, (4, 2, 3, 5), "complex128", "backward"),
]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("ranks", "shape", "dtype", "norm"), CASES)
def test_it_is_the_transform(
    ranks: int,
    shape: tuple[int, ...],
    dtype: str,
    norm: str,
    lazy: bool,
    part_bytes: int,
    compact: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In many parts and in one, of which some are empty; in rooms of the whole array and of two blocks."""
    monkeypatch.setattr(direct_fourier, "PART_BYTES", part_bytes)
    transforms(ranks, shape, dtype, norm, lazy, compact=compact)


def late(rank: int) -> None:
    if rank == 1:
        time.sleep(0.02)


@pytest.mark.parametrize("compact", [pytest.param(False, marks=pytest.mark.nightly), True])
@pytest.mark.parametrize(
    ("where", "method", "lazy"),
    [(ThreadComm, "all_reduce", False), (HostCopies, "wait", True), (HostCopies, "follow", False)],
)
def test_a_rank_that_does_not_wait_is_noticed(
    where: Any, method: str, lazy: bool, compact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before others' rooms are written, before what has arrived is read, before what is copied is there."""
    monkeypatch.setattr(direct_fourier, "PART_BYTES", 1)
    transforms(2, (29, 31), "complex128", "backward", lazy, late, compact)
    monkeypatch.setattr(where, method, lambda *_: None)
    with pytest.raises(AssertionError):
        transforms(2, (29, 31), "complex128", "backward", lazy, late, compact)


def test_most_of_the_copies_go_beside_the_first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards after each part of the planes, backwards after each part of the lines but the last one."""
    monkeypatch.setattr(direct_fourier, "PART_BYTES", 1)
    monkeypatch.setattr(direct_fourier, "PARTS", 8)

    def case(world: World) -> list[tuple[int, int]]:
        shares = []
        rows = HostCopies.rows

        def noted(self: HostCopies, *ends: Any) -> None:
            if self.world.rank == 0:
                shares.append((self.issued, ends[-2] * ends[-1]))
            rows(self, *ends)

        if world.rank == 0:
            monkeypatch.setattr(HostCopies, "rows", noted)
        world.control.barrier()
        found = opened(world, (32, 64), "complex64", "backward")
        assert isinstance(found, DirectFourier)
        found.inverse(found.forward(np.zeros((16, 64), np.complex64)))
        return shares

    shares = on_ranks(2, case)[0]
    block = 16 * 32 * 8  # bytes that go to the other rank
    forward, back = shares[:10], shares[10:]
    assert [issued for issued, _ in forward] == [*range(1, 9), 8, 8]
    assert sum(share for _, share in forward[:8]) == block * 3 // 4
    assert sum(share for _, share in forward) == block
    begun = 8 + 3  # forwards: eight parts of planes, three of lines
    assert [issued - begun for issued, _ in back] == [1, 2, 3, *[4] * 8]
    assert sum(share for _, share in back[:3]) == block * 3 // 8
    assert sum(share for _, share in back) == block


@pytest.mark.parametrize(("room", "blocks"), [(81 + 54, False), (81 + 54 - 1, True)])
def test_where_the_whole_array_does_not_fit_there_is_room_for_two_blocks(
    room: int, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 9 x 9 cells on three ranks: 81 in a room or 54, and 54 in the blocks."""

    def case(world: World) -> int:
        monkeypatch.setattr(world.backend, "free_memory", lambda: room * 8)
        found = opened(world, (9, 9), "complex64", "backward")
        assert isinstance(found, DirectFourier)
        size: int = found._room.size
        found.close()
        return size

    assert on_ranks(3, case) == [54 if blocks else 81] * 3


def test_there_is_room_for_two_blocks_of_a_large_array() -> None:
    """2048^3 complex64 cells have 64 GiB."""
    plenty = 1 << 60
    assert not is_compact((2048, 1024, 2048), 4, 8, plenty)
    assert is_compact((2048, 2048, 2048), 4, 8, plenty)
    assert is_compact((2048, 1024, 2048), 4, 8, 40 << 30)


@pytest.mark.parametrize(
    ("layout", "factor", "long"),
    [
        (BatchLayout((2048,), 6, (9, 6), 1), 1.0, True),
        (BatchLayout((2048,), 6, (9, 6), 1), 0.5, False),
        (BatchLayout((2048,), 6, (1, 1), 2048), 1.0, False),
        (BatchLayout((2048, 16), 6, (1, 1), 2048 * 16), 1.0, False),
        (BatchLayout((1024,), 6, (9, 6), 1), 1.0, False),
    ],
)
@pytest.mark.parametrize("inverse", [False, True])
def test_long_lines_side_by_side_have_a_kernel(
    layout: BatchLayout, factor: float, long: bool, inverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line_plan(length: int, *words: Any) -> Any:
        return ("lines", length, *words) if length == 2048 else None

    taken = SimpleNamespace(line_plan=line_plan)
    monkeypatch.setitem(sys.modules, "meshrun.runner.device.fourier_lines", taken)  # type: ignore[arg-type]
    monkeypatch.setattr(direct_fourier, "cufft_plan", lambda *words: ("cuFFT", *words))
    kind = np.dtype("complex64")
    found: Any = device_plan(layout, kind, inverse, factor)
    assert found == (
        ("lines", 2048, 6, (9, 6), kind, inverse) if long else ("cuFFT", layout, kind, inverse, factor)
    )


@pytest.mark.parametrize("c_type", ["float2", "double2"])
def test_cudas_compiler_takes_the_function(c_type: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and NVRTC")
    options = ["-DSCALE=scale", f"-DTYPE={c_type}", f"-DFACTOR=0.5{'f' if c_type == 'float2' else ''}"]
    options += ["-arch=sm_90", "--relocatable-device-code=true"]
    text = (host_kernels.KERNELS / "fourier_scale.cuh").read_bytes()
    program = done(nvrtc.nvrtcCreateProgram(text, b"scale.cu", 0, [], []))
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [one.encode() for one in options])
    log = bytearray(done(nvrtc.nvrtcGetProgramLogSize(program)))
    done(nvrtc.nvrtcGetProgramLog(program, log))
    assert (error, log.strip(b"\0\n ")) == (nvrtc.nvrtcResult.NVRTC_SUCCESS, b"")
    done(nvrtc.nvrtcDestroyProgram(program))


def test_why_it_is_not_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 1 << 40
    assert problem_of((8, 8), 2, 8, room) == ""
    assert problem_of((2, 2, 2, 2, 2), 2, 8, room).startswith("cuFFT transforms planes of three axes at most")
    assert problem_of((8, 2), 3, 8, room) == "there are 2 planes or rows for 3 ranks"
    assert problem_of((2, 1 << 14, 1 << 14), 2, 8, room) == (
        "planes of 2,147,483,648 bytes are larger than CUDA copies in rows"
    )
    assert problem_of((8, 10), 2, 8, 3 * 4 * 80) == ""
    assert problem_of((8, 10), 2, 8, 3 * 4 * 80 - 1) == (
        "room for two blocks and a result needs 960 bytes on each GPU; 959 are free"
    )

    def refused(*words: Any) -> Execute:
        raise Unreachable("cuFFT takes no function that stores: CUFFT_INTERNAL_ERROR")

    def case(world: World) -> None:
        closed = ThreadPeers.closed
        plan: Any = refused if world.rank else lambda *_: None
        about = (world, (2, 2), np.dtype("c8"), (1.0, 1.0))
        copies: Any = lambda _: None  # noqa: E731
        found = open_direct_fourier(*about, ThreadPeers(world), plan, copies)
        assert found == "cuFFT takes no function that stores: CUFFT_INTERNAL_ERROR"
        world.control.barrier()
        assert ThreadPeers.closed == closed + 2
        blind = open_direct_fourier(*about, ThreadPeers(world, blind=(1,)), plan, copies)
        assert blind == "rank 1 cannot open rank 0's memory"
        world.control.barrier()
        released: list[int] = []
        monkeypatch.setattr(world.backend, "release_memory", lambda: released.append(1))
        if world.rank == 1:
            monkeypatch.setattr(world.backend, "free_memory", lambda: 1000 * (len(released) - 1))
        assert " 0 are free" in str(open_direct_fourier(*about, ThreadPeers(world), plan, copies))
        assert released == [1]

    on_ranks(2, case)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 6), (2, 9)])
def test_messages_take_the_place_of_copies(ranks: int, shape: tuple[int, ...]) -> None:
    def case(world: World) -> None:
        for dtype, norm in (("complex64", "backward"), ("complex128", "ortho")):
            with FourierPlan(world, shape, dtype, norm=norm) as plan:  # type: ignore[arg-type]
                few = min(shape[:2]) < ranks
                reason = f"there are {min(shape[:2])} planes or rows for {ranks} ranks" if few else None
                assert plan.exchange == ("none" if ranks == 1 else "messages")
                assert plan.reason == ("" if ranks == 1 else reason or "the ranks compute on CPUs")
                cases.plan_goes_there_and_back(world, plan, shape=shape, dtype=dtype, norm=norm)

    on_ranks(ranks, case)


def test_bad_input_gets_one_sentence() -> None:
    def case(world: World) -> None:
        for shape, dtype, norm, message in (
            ((8,), "c8", "backward", "two axes or more"),
            ((8, 0), "c8", "backward", "cells along each"),
            ((8.5, 8), "c8", "backward", r"two axes or more.*got shape \(8.5, 8\)"),
            (8, "c8", "backward", "two axes or more.*got shape 8"),
            ((8, 8), "f4", "backward", "complex64 or complex128"),
            ((8, 8), "c8", "both", "unknown norm"),
            ((8, 8), "complex", "ortho", None),
            ((8, 8), "no dtype", "ortho", "complex64 or complex128"),
            (
                (8, 8 + world.rank),
                "c8",
                "ortho",
                r"different transforms.*shape \(8, 9\), ortho, auto on rank 1",
            ),
        ):
            if message is None:
                FourierPlan(world, shape, dtype, norm=norm)  # type: ignore[arg-type]
                continue
            with pytest.raises(UserError, match=message):
                FourierPlan(world, shape, dtype, norm=norm)  # type: ignore[arg-type]
        plan = FourierPlan(world, (8, 6))
        with pytest.raises(UserError, match=r"does not fit the plan.*complex128 of shape \(4, 6\)"):
            plan.forward(np.zeros((4, 6)).astype("c16"))
        with pytest.raises(UserError, match=r"expected complex64 of shape \(8, 3\)"):
            plan.inverse(np.zeros((4, 6), "c8"))
        with pytest.raises(UserError, match=r"rank 1: the block does not fit.*complex64 of shape \(5, 6\)"):
            plan.forward(np.zeros((4 + world.rank, 6), "c8"))  # wrong on one rank, refused on both
        plan.close()
        with pytest.raises(UserError, match="closed"):
            plan.forward(np.zeros((4, 6), "c8"))

    on_ranks(2, case)


class Clock(threading.local):
    """A clock of each rank, which only a direct exchange moves: messages take any time on a busy machine."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Direct:
    """Stands for direct transforms that take so many seconds, and whose results are of no use."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...], seconds: float, clock: Clock) -> None:
        self.shapes, self.seconds, self.clock, self.closed = shapes, seconds, clock, 0

    def forward(self, block: Array) -> Array:
        return self.inverse(block, 1)

    def inverse(self, block: Array, result: int = 0) -> Array:
        assert block.shape == self.shapes[1 - result]
        self.clock.now += self.seconds
        return np.full(self.shapes[result], np.nan, "c8")

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("seconds", "exchange", "taken"),
    [
        (0, "auto", "direct"),
        (0.2, "auto", "messages"),
        (0.2, "direct", "direct"),
        (0, "messages", "messages"),
    ],
)
def test_the_faster_exchange_is_kept(
    seconds: float, exchange: Any, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def case(world: World) -> None:
        made = Direct(((96, 32, 20), (192, 16, 20)), seconds, clock)
        opened[world.rank] = made
        with FourierPlan(world, (192, 32, 20), exchange=exchange) as plan:
            assert plan.exchange == taken
            assert set(plan.seconds) == ({"direct", "messages"} if exchange == "auto" else set())
            if taken == "messages":
                faster = "messages are faster: 0 ms there and back, direct 400$"
                assert re.match(faster if exchange == "auto" else 'exchange="messages"', plan.reason)
                assert made.closed == (exchange == "auto")
                cases.plan_goes_there_and_back(world, plan, shape=(192, 32, 20), dtype="complex64")
            else:
                assert (plan.reason, made.closed) == ("", 0)
                assert np.isnan(plan.forward(np.ones((96, 32, 20), "c8"))).all()
        assert made.closed == (exchange != "messages")

    clock, opened = Clock(), dict[int, Direct]()
    monkeypatch.setattr(fourier_plan, "time", clock)
    monkeypatch.setattr(fourier_plan, "open_direct_fourier", opens(lambda world: opened[world.rank]))
    on_ranks(2, case)


def opens(direct: Callable[[World], Direct | str]) -> Callable[..., Direct | str]:
    """Stand for `open_direct_fourier`."""

    def open_direct(world: World, *_: Any, before: Callable[[], None] | None) -> Direct | str:
        if before is not None:
            before()
        return direct(world)

    return open_direct


@pytest.mark.parametrize(
    ("blocks", "room", "measured"), [(5, 0, []), (5.1, 3.2, ["messages"]), (5.1, 3, ["messages", "direct"])]
)
def test_too_little_memory_to_measure_keeps_copies(
    blocks: float, room: float, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank has too little. Messages need more of it, so that they are measured before there is a room;
    copies are not where they have nothing to be compared with."""
    shapes, clock, noted = ((4, 12), (8, 6)), Clock(), list[str]()
    transformed = FourierPlan._transformed

    def note(self: FourierPlan, block: Array, split: int) -> Array:
        noted.append("messages" if self._direct is None else "direct")
        return transformed(self, block, split)

    def case(world: World) -> None:
        if world.rank == 1:
            monkeypatch.setattr(world.backend, "free_memory", lambda: int((blocks - taken[0]) * 8 * 48))
        with FourierPlan(world, (8, 12)) as plan:
            assert plan.exchange == "direct"
            assert set(plan.seconds) == (set(measured) if len(measured) == 2 else set())

    def direct(_: World) -> Direct:
        taken[0] = room
        return Direct(shapes, 0, clock)

    taken = [0.0]
    monkeypatch.setattr(FourierPlan, "_transformed", note)
    monkeypatch.setattr(fourier_plan, "open_direct_fourier", opens(direct))
    on_ranks(2, case)
    assert list(dict.fromkeys(noted)) == measured


def test_messages_alone_are_no_measurement_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def case(world: World) -> None:
        with FourierPlan(world, (8, 12)) as plan:
            assert (plan.exchange, plan.reason, plan.seconds) == ("messages", "no room", {})

    monkeypatch.setattr(fourier_plan, "open_direct_fourier", opens(lambda _: "no room"))
    on_ranks(2, case)


def test_a_room_that_no_longer_fits_beside_messages_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep memory after they have been measured."""

    def case(world: World) -> None:
        closed, free = ThreadPeers.closed, [3 * 8 * 48]
        world.control.barrier()
        if world.rank == 1:
            monkeypatch.setattr(world.backend, "free_memory", lambda: free[0])
        about = (world, (8, 12), np.dtype("c8"), (1.0, 1.0), ThreadPeers(world))
        found = open_direct_fourier(*about, before=lambda: free.__setitem__(0, 3 * 8 * 48 - 1))
        assert found == "room for two blocks and a result needs 1,152 bytes on each GPU; 1,151 are free"
        world.control.barrier()
        assert ThreadPeers.closed == closed + 2

    on_ranks(2, case)


def test_a_direct_exchange_that_is_asked_for_is_not_replaced() -> None:
    def case(world: World) -> None:
        with pytest.raises(UserError, match=r"not possible here: got the ranks compute on CPUs.*auto"):
            FourierPlan(world, (8, 6), exchange="direct")
        with pytest.raises(UserError, match="unknown exchange"):
            FourierPlan(world, (8, 6), exchange="fast")  # type: ignore[arg-type]

    on_ranks(2, case)


def test_a_rank_without_memory_ends_all() -> None:
    class Full(ThreadPeers):
        def empty(self, shape: Any, dtype: Any) -> Array:
            if self.world.rank == 1:
                raise MemoryError("out of memory")
            return super().empty(shape, dtype)

    def case(world: World) -> list[BaseException]:
        found = []
        for attempt in (
            lambda: open_direct_fourier(world, (4, 4), np.dtype("c8"), (1.0, 1.0), Full(world)),
            lambda: direct.open_direct(world, (4, 4), np.dtype("c8"), (1, 0), Full(world)),
        ):
            with pytest.raises(Exception, match="out of memory") as caught:
                attempt()
            found.append(caught.value)
        return found

    for found in on_ranks(2, case):
        assert len(found) == 2

    on_ranks(2, case)
