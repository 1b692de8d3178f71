"""Transforms whose results are stored into other ranks' memory: the functions of fourier_stores.cuh, compiled
for the host, are called for each element of what NumPy transforms as cuFFT's plans do."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import host_kernels
import numpy as np
import pytest
import transform_cases as cases
from nvrtc_log import done
from thread_peers import ThreadPeers

import jobs.kernels
from jobs.transforms import direct, fourier_plan
from jobs.transforms.direct_fourier import BatchLayout, DirectFourier, Execute, Places, problem_of
from jobs.transforms.fourier_plan import FourierPlan, open_direct_fourier
from runner.comm.peer_memory import Unreachable
from runner.comm.threads import ThreadComm, run_ranks
from runner.errors import UserError
from runner.world.world import World, open_world

Array = np.ndarray[Any, Any]
HEADER = """
#define __device__
struct float2 { float x, y; };
struct double2 { double x, y; };
#include "fourier_stores.cuh"
extern "C" void store(TYPE* elements, unsigned long long count, void* places) {
    for (unsigned long long n = 0; n < count; ++n) STORE(nullptr, n, elements[n], places, nullptr);
}
"""


class HostPlans:
    """`Planner` on the host. changed: a text of fourier_stores.cuh and what stands there instead."""

    def __init__(self, folder: Path, changed: tuple[str, str] | None = None) -> None:
        self.folder, self.changed, self.lock = folder, changed, threading.Lock()

    def __call__(
        self, layout: BatchLayout, dtype: np.dtype[Any], inverse: bool, places: Places | None
    ) -> Execute:
        axes = tuple(range(1, 1 + len(layout.shape)))
        function = self.compiled(places) if places else None
        work = np.fft.ifftn if inverse else np.fft.fftn

        def execute(source: Array, out: Array) -> None:
            assert source.dtype == out.dtype == dtype
            found = work(cells(source, layout), axes=axes, norm="forward" if inverse else "backward")
            cells(out, layout)[...] = found
            if function is not None:
                assert places is not None
                targets = places.targets.ctypes.data_as(ctypes.c_void_p)
                elements = out.copy()
                out.fill(np.nan)  # scratch memory: nothing may be expected there
                function(elements.ctypes.data_as(ctypes.c_void_p), ctypes.c_ulonglong(out.size), targets)

        return execute

    def compiled(self, places: Places) -> Callable[..., None]:
        text = (host_kernels.KERNELS / "fourier_stores.cuh").read_text()
        if self.changed is not None:
            assert text.count(self.changed[0]) == 1
            text = text.replace(*self.changed)
        source = HEADER.replace('#include "fourier_stores.cuh"', text)
        flags = ["-std=c++17", "-O0", "-shared", "-fPIC"]
        flags += [*(f"-D{name}={value}" for name, value in places.constants.items())]
        flags += [f"-D{places.function}=STORE"]
        name = hashlib.sha256(repr((source, flags)).encode()).hexdigest()[:16]
        with self.lock:  # ranks are threads
            library = self.folder / f"stores-{name}.so"
            if not library.exists():
                written = library.with_suffix(".cpp")
                written.write_text(source)
                subprocess.run([host_kernels.GXX, *flags, str(written), "-o", str(library)], check=True)
            function: Callable[..., None] = ctypes.CDLL(str(library)).store
            return function


class GuardedPeers(ThreadPeers):
    """Memory about which broken functions may store."""

    def empty(self, shape: Any, dtype: Any) -> Array:
        size = int(np.prod(shape))
        return super().empty((9 * size,), dtype)[4 * size : 5 * size]


def cells(array: Array, layout: BatchLayout) -> Array:
    """The transforms of a layout: (batch, *shape)."""
    strides = [layout.stride]
    for length in reversed(layout.shape[1:]):
        strides.insert(0, strides[0] * length)
    size = array.itemsize
    return np.lib.stride_tricks.as_strided(
        array, (layout.batch, *layout.shape), [size * n for n in (layout.distance, *strides)]
    )


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    if host_kernels.GXX is None:
        pytest.skip("needs g++")
    monkeypatch.setattr(jobs.kernels, "address", lambda array: array.ctypes.data)
    return tmp_path_factory.getbasetemp()


def on_ranks(ranks: int, case: Callable[[World], Any]) -> list[Any]:
    return run_ranks(ranks, lambda comm: case(open_world("cpu", control=comm)), timeout=60)


def transforms(ranks: int, shape: tuple[int, ...], dtype: str, norm: Any, plans: HostPlans) -> None:
    def case(world: World) -> None:
        peers = GuardedPeers(world)
        opened = open_direct_fourier(
            world, shape, np.dtype(dtype), fourier_plan._scales(shape, norm), peers, plans
        )
        assert isinstance(opened, DirectFourier)
        for _ in range(2):
            cases.plan_goes_there_and_back(world, opened, shape=shape, dtype=dtype, norm=norm)
        opened.close()

    on_ranks(ranks, case)


@pytest.mark.parametrize(
    ("ranks", "shape", "dtype", "norm"),
    [
        (2, (5, 7), "complex64", "backward"),
        (3, (7, 5, 4), "complex128", "ortho"),
        (3, (3, 3, 2, 2), "complex64", "forward"),
        (2, (4, 2, 3, 5), "complex128", "backward"),
    ],
)
def test_it_is_the_transform(ranks: int, shape: tuple[int, ...], dtype: str, norm: str, folder: Path) -> None:
    transforms(ranks, shape, dtype, norm, HostPlans(folder))


@pytest.mark.parametrize(
    "changed",
    [
        ("start_of(RANK, LENGTH) + plane", "plane"),
        ("(rest - first * INNER)", "rest"),
        ("(first + line)", "line"),
        ("row - start_of(owner, LENGTH)", "row"),
    ],
)
def test_broken_functions_are_found(changed: tuple[str, str], folder: Path) -> None:
    with pytest.raises((AssertionError, ValueError)):
        transforms(3, (7, 5, 4), "complex128", "ortho", HostPlans(folder, changed))


def test_ranks_wait_for_each_other_before_and_after_the_stores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the first, stores would meet memory that is read; without the second, it is read too early."""
    events: list[str] = []
    reduce = ThreadComm.all_reduce

    def noted(self: ThreadComm, array: Any, operation: Any) -> None:
        events.append("wait")
        reduce(self, array, operation)

    monkeypatch.setattr(ThreadComm, "all_reduce", noted)

    def case(world: World) -> list[str]:
        def plan(layout: BatchLayout, dtype: Any, inverse: bool, places: Places | None) -> Execute:
            return lambda source, out: events.append("store" if places else "transform")

        opened = open_direct_fourier(world, (4, 4), np.dtype("c8"), (1.0, 1.0), ThreadPeers(world), plan)
        assert isinstance(opened, DirectFourier)
        opened.forward(np.zeros((2, 4), np.complex64))
        return events

    found = on_ranks(2, case)[0]
    assert found[:2] == ["wait", "wait"] or found[:3].count("wait") == 2
    assert sorted(found) == ["store"] * 2 + ["transform"] * 2 + ["wait"] * 4
    assert found.index("transform") > max(n for n, event in enumerate(found) if event == "store")


@pytest.mark.parametrize("function", ["STORE_PLANES", "STORE_LINES"])
@pytest.mark.parametrize(("c_type", "index"), [("float2", "unsigned"), ("double2", "unsigned long long")])
def test_cudas_compiler_takes_the_functions(function: str, c_type: str, index: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and NVRTC")
    constants = {"LENGTH": "7u", "SPLIT": "5u", "INNER": "4u", "RANKS": "3u", "RANK": "1u"}
    options = [*(f"-D{name}={value}" for name, value in constants.items()), f"-D{function}=store"]
    options += [f"-DTYPE={c_type}", f"-DSCALE=0.5{'f' if c_type == 'float2' else ''}", f"-DINDEX={index}"]
    options += ["-arch=sm_90", "--relocatable-device-code=true"]
    text = (host_kernels.KERNELS / "fourier_stores.cuh").read_bytes()
    program = done(nvrtc.nvrtcCreateProgram(text, b"stores.cu", 0, [], []))
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [one.encode() for one in options])
    log = bytearray(done(nvrtc.nvrtcGetProgramLogSize(program)))
    done(nvrtc.nvrtcGetProgramLog(program, log))
    assert (error, log.strip(b"\0\n ")) == (nvrtc.nvrtcResult.NVRTC_SUCCESS, b"")
    done(nvrtc.nvrtcDestroyProgram(program))


def test_why_it_is_not_possible(folder: Path) -> None:
    assert problem_of((8, 8), 2) == ""
    assert problem_of((2, 2, 2, 2, 2), 2) == "cuFFT transforms planes of three axes at most, not of 4"
    assert problem_of((8, 2), 3) == "there are 2 planes or rows for 3 ranks"
    assert problem_of((2, 1 << 16, 1 << 15), 2) == "planes have more elements than cuFFT's plans count"

    def refused(*words: Any) -> Execute:
        raise Unreachable("cuFFT takes no function that stores: CUFFT_INTERNAL_ERROR")

    def case(world: World) -> None:
        closed = ThreadPeers.closed
        plan: Any = refused if world.rank else HostPlans(folder)
        found = open_direct_fourier(world, (2, 2), np.dtype("c8"), (1.0, 1.0), ThreadPeers(world), plan)
        assert found == "cuFFT takes no function that stores: CUFFT_INTERNAL_ERROR"
        world.control.barrier()
        assert ThreadPeers.closed == closed + 2
        blind = open_direct_fourier(
            world, (2, 2), np.dtype("c8"), (1.0, 1.0), ThreadPeers(world, blind=(1,)), plan
        )
        assert blind == "rank 1 cannot open rank 0's memory"

    on_ranks(2, case)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 6), (2, 9)])
def test_messages_take_the_place_of_stores(ranks: int, shape: tuple[int, ...]) -> None:
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
        plan.close()
        with pytest.raises(UserError, match="closed"):
            plan.forward(np.zeros((4, 6), "c8"))


class Clock(threading.local):
    """A clock of each rank, which only stores move: on a busy machine messages may take any time."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Stores:
    """Stands for transforms by stores that take so many seconds, and whose results are of no use."""

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
        stores = Stores(((96, 32, 20), (192, 16, 20)), seconds, clock)
        opened[world.rank] = stores
        with FourierPlan(world, (192, 32, 20), exchange=exchange) as plan:
            assert plan.exchange == taken
            assert set(plan.seconds) == ({"direct", "messages"} if exchange == "auto" else set())
            if taken == "messages":
                faster = "messages are faster: 0 ms there and back, by stores 400$"
                assert re.match(faster if exchange == "auto" else 'exchange="messages"', plan.reason)
                assert stores.closed == (exchange == "auto")
                cases.plan_goes_there_and_back(world, plan, shape=(192, 32, 20), dtype="complex64")
            else:
                assert (plan.reason, stores.closed) == ("", 0)
                assert np.isnan(plan.forward(np.ones((96, 32, 20), "c8"))).all()
        assert stores.closed == (exchange != "messages")

    clock, opened = Clock(), dict[int, Stores]()
    monkeypatch.setattr(fourier_plan, "time", clock)
    name = "jobs.transforms.fourier_plan.open_direct_fourier"
    monkeypatch.setattr(name, lambda world, *_: opened[world.rank])
    on_ranks(2, case)


def test_too_little_memory_to_measure_keeps_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As messages need more memory than stores do. One rank has too little."""

    def case(world: World) -> None:
        if world.rank == 1:
            monkeypatch.setattr(world.backend, "free_memory", lambda: 4 * 8 * 48)
        with FourierPlan(world, (8, 12)) as plan:
            assert (plan.exchange, plan.seconds) == ("direct", {})

    stores = Stores((), 0, Clock())
    monkeypatch.setattr("jobs.transforms.fourier_plan.open_direct_fourier", lambda *_: stores)
    on_ranks(2, case)


def test_a_direct_exchange_that_is_asked_for_is_not_replaced() -> None:
    def case(world: World) -> None:
        with pytest.raises(UserError, match=r"not possible here: got the ranks compute on CPUs.*auto"):
            FourierPlan(world, (8, 6), exchange="direct")
        with pytest.raises(UserError, match="unknown exchange"):
            FourierPlan(world, (8, 6), exchange="fast")  # type: ignore[arg-type]

    on_ranks(2, case)


def test_a_rank_without_memory_ends_all(folder: Path) -> None:
    class Full(ThreadPeers):
        def empty(self, shape: Any, dtype: Any) -> Array:
            if self.world.rank == 1:
                raise MemoryError("out of memory")
            return super().empty(shape, dtype)

    def case(world: World) -> list[BaseException]:
        found = []
        for attempt in (
            lambda: open_direct_fourier(
                world, (4, 4), np.dtype("c8"), (1.0, 1.0), Full(world), HostPlans(folder)
            ),
            lambda: direct.open_direct(world, (4, 4), np.dtype("c8"), (1, 0), Full(world)),
        ):
            with pytest.raises(Exception, match="out of memory") as caught:
                attempt()
            found.append(caught.value)
        return found

    for found in on_ranks(2, case):
        assert len(found) == 2

    on_ranks(2, case)
