"""Checksums of what crosses ranks: damage is found by the ranks that it reaches, and nothing else is."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_halo
import numpy as np
import pytest
from damaging_comm import DamagingComm
from host_halo import HostTables
from hypothesis import given, settings
from hypothesis import strategies as st
from queued_device import QueuedBackend

from meshrun.runner.comm import mpi
from meshrun.runner.comm.checksum import sums
from meshrun.runner.comm.checksum.checked import CheckedControl, Checksums, Damaged
from meshrun.runner.comm.checksum.sums import DeviceSums, HostSums
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.choices import Checksum
from meshrun.runner.world.world import World, open_world, with_checksums

DTYPES = ("u1", "i2", "f2", "f4", ">i4", "f8", "c8", "c16", "?")


def opened(control: ThreadComm, choice: Checksum) -> World:
    return with_checksums(open_world("cpu", control=control), choice)


def caught(size: int, body: Callable[[World], Any], choice: Checksum, fault: str, **more: Any) -> list[Any]:
    """For each rank, the error that it met, or what `body` returned."""

    def rank(control: ThreadComm) -> Any:
        try:  # also where the world opens: a slow rank may still be there when a fast one has met the damage
            return body(opened(DamagingComm(control.hub, control.rank, fault, **more), choice))
        except RunError as failure:  # of Damaged, or of a rank that waits for one that has met it
            if fault != "result":
                control.abort(1)
            return failure

    return run_ranks(size, rank)


# Right runs.


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_nothing_is_flagged_and_the_bits_are_the_same(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 4))
    seed = data.draw(st.integers(0, 99))
    messages = [
        (data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([0, 1, 3, 7, 8, 9, 255, 4097])))
        for _ in range(data.draw(st.integers(1, 5)))
    ]

    def work(world: World) -> list[bytes]:
        random = np.random.default_rng([seed, world.rank])
        found = []
        for dtype, count in messages:
            one = np.frombuffer(random.bytes(count * np.dtype(dtype).itemsize), "u1").copy().view(dtype)
            arrived = [np.empty(count, dtype) for _ in range(world.size - 1)]
            others = [rank for rank in range(world.size) if rank != world.rank]
            world.control.exchange(
                [(rank, one) for rank in others], list(zip(others, arrived, strict=True))
            ).wait()
            found += [array.tobytes() for array in arrived]
            found.append(world.all_gather(one).tobytes())
            found.append(world.all_to_all([one] * world.size)[0].tobytes())
            if np.dtype(dtype).kind in "iuf":
                found.append(world.reduce_scatter(one, "max").tobytes())
                found.append(world.all_reduce(one.astype(one.dtype.newbyteorder("=")), "sum").tobytes())
        return found

    choices: tuple[Checksum, ...] = ("off", "sample", "full")
    off, sampled, checked = (
        run_ranks(size, lambda control, choice=choice: work(opened(control, choice))) for choice in choices
    )
    assert off == sampled == checked


def test_groups_along_a_grid_are_checked() -> None:
    def work(world: World) -> int:
        grid = world.grid(2, 2)
        group = grid.along(1)
        row = 2 * (world.rank // 2)
        assert group.all_gather(np.array([world.rank])).tolist() == [row, row + 1]
        grid.close()
        assert world.checksums is not None
        return world.checksums.messages

    assert run_ranks(4, lambda control: work(opened(control, "full"))) == [1, 1, 1, 1]


def test_messages_may_be_grouped_differently_on_both_sides() -> None:
    def work(world: World) -> None:
        parts = [np.full(5, n, "i4") for n in range(4)]
        if world.rank == 0:
            world.exchange([(1, part) for part in parts], [])
        else:
            for part in parts:
                assert np.array_equal(world.receive(np.empty(5, "i4"), 0), part)

    run_ranks(2, lambda control: work(opened(control, "full")))


def test_a_share_is_chosen_by_both_ranks_and_differs_between_runs() -> None:
    chosen = []
    for seed in (1, 2):
        of_rank = [Checksums(64, seed, []) for _ in range(2)]
        numbers = [[n for n in range(1, 6401) if one.chosen(3, 5, n)] for one in of_rank]
        assert numbers[0] == numbers[1]
        assert 60 < len(numbers[0]) < 140
        chosen.append(numbers[0])
    assert chosen[0] != chosen[1]


def test_all_reduce_may_differ_in_a_zeros_sign_and_a_nans_payload() -> None:
    values = np.array([[0.0, np.nan, 1.0], [-0.0, -np.nan, 1.0]])
    values[0, 1:2].view("u8")[0] |= 5

    class Different(ThreadComm):
        def all_reduce(self, array: Any, operation: Any) -> None:
            if array.dtype == np.uint64:
                super().all_reduce(array, operation)

    for dtype in ("f4", "f8", "c16"):

        def work(control: ThreadComm, dtype: str = dtype) -> Any:
            array = values[control.rank].astype(dtype)
            opened(Different(control.hub, control.rank), "full").all_reduce(array)
            return array.tobytes()

        found = run_ranks(2, work)
        assert found[0] != found[1]


# Damage.


def exchange_three(world: World) -> list[Any]:
    found = []
    for number in range(3):
        right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        arrived = np.empty(100, "f4")
        sent = np.random.default_rng([number, world.rank]).random(100, "f4")
        world.exchange([(right, sent)], [(left, arrived)])
        found.append(np.array_equal(arrived, np.random.default_rng([number, left]).random(100, "f4")))
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("fault", ["bit", "old"])
def test_a_damaged_message_is_found_by_its_receiver(size: int, fault: str) -> None:
    found = caught(size, exchange_three, "off", fault)
    assert found == [[True, rank != 1, True] for rank in range(size)]
    found = caught(size, exchange_three, "full", fault)
    failure = found[1]
    assert isinstance(failure, Damaged)
    assert failure.exit_code == 1
    assert not failure.everywhere
    assert failure.what.startswith("rank 1 (")
    assert "has not received what rank 0 (" in failure.what
    assert failure.what.endswith("in an exchange")
    assert "of 400 bytes (message 2)" in failure.got
    assert "of 400 bytes (message 2)" in failure.expected
    assert failure.got != failure.expected
    assert not any(isinstance(one, Damaged) for rank, one in enumerate(found) if rank != 1)


def test_a_message_sent_again_with_its_trailer_is_found() -> None:
    """All of the message before, the trailer too: its number differs."""
    found = caught(2, exchange_three, "full", "old", least=0, number=4)  # the second trailer
    assert "message 2" in str(found[1].got)
    assert "message 1" in str(found[1].expected)


COLLECTIVES: dict[str, Callable[[World], Any]] = {
    "all_gather": lambda world: world.all_gather(np.arange(50.0) + world.rank),
    "all_to_all": lambda world: world.all_to_all([np.arange(50.0)] * world.size),
    "reduce_scatter": lambda world: world.reduce_scatter(np.arange(50.0 * world.size)),
    "redistribute": lambda world: world.redistribute(np.ones((10, 10 * world.size)), 0, 1),
}


@pytest.mark.parametrize("name", [*COLLECTIVES])
def test_a_damaged_collective_is_named(name: str) -> None:
    assert not any(isinstance(one, Damaged) for one in caught(3, COLLECTIVES[name], "off", "bit", number=1))
    failure = caught(3, COLLECTIVES[name], "full", "bit", number=1)[1]
    assert isinstance(failure, Damaged)
    assert failure.what.endswith(f"in {name}")


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["f4", "i8", "u1"])
def test_a_result_of_all_reduce_that_differs_is_found_by_all(size: int, dtype: str) -> None:
    def work(world: World) -> Any:
        for _ in range(3):
            result = world.all_reduce(np.arange(7).astype(dtype))
        return result.tolist()

    assert not any(isinstance(one, Damaged) for one in caught(size, work, "off", "result"))
    found = caught(size, work, "full", "result")
    assert all(isinstance(one, Damaged) for one in found)
    assert len({str(one) for one in found}) == 1
    what = found[0].what
    assert "rank 0 (" in what
    assert "rank 1 (" in what
    assert what.endswith("different results of all_reduce 2")


def test_sampled_checks_some_messages() -> None:
    """Each of 1280 messages is damaged: those that are checked, about 20, are found."""

    def work(control: ThreadComm) -> tuple[int, int]:
        damaging = DamagingComm(control.hub, control.rank, "bit")
        checked = CheckedControl(damaging, Checksums(64, 7, ["rank 0", "rank 1"]))
        found = 0
        for number in range(1, 1281):
            damaging.number = number
            sends = [] if control.rank else [(1, np.ones(9))]
            pending = checked.exchange(sends, [(0, np.empty(9))] if control.rank else [])
            try:
                pending.wait()
            except Damaged:
                found += 1
        return found, checked.checksums.messages

    found, messages = run_ranks(2, work)[1]
    assert found == messages
    assert 10 <= found <= 30


def test_collectives_on_raw_memory_are_refused() -> None:
    world = opened(ThreadComm(), "full")
    with pytest.raises(UserError, match="--checksum does not check collectives on raw memory"):
        world.collectives(world.control)


# Big messages, in MPI's pieces, and the host's checksum.


def test_a_message_in_pieces_has_one_trailer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MPI sends it: a trailer follows the last piece."""
    monkeypatch.setattr(mpi, "PIECE", 1000)

    class InPieces(ThreadComm):
        def exchange(self, sends: Sequence[Any], receives: Sequence[Any]) -> Any:
            cut = mpi.MpiComm._pieces
            me: Any = SimpleNamespace(_mpi=SimpleNamespace(BYTE=None))
            return super().exchange(
                *(
                    [(peer, piece[0]) for peer, array in some for piece in cut(me, array)]
                    for some in (sends, receives)
                )
            )

    def work(control: ThreadComm) -> bool:
        world = opened(InPieces(control.hub, control.rank), "full")
        sent, arrived = np.arange(5001.0), np.empty(5001)
        world.exchange([(1 - world.rank, sent)], [(1 - world.rank, arrived)])
        return np.array_equal(sent, arrived)

    assert run_ranks(2, work) == [True, True]


# The device's checksum: the kernel, run on the host.

LAUNCH = """
extern "C" void launch_checksum(unsigned grid, u64 data, i64 bytes, u64 number, u64* trailer) {
    run_grid(grid, [=] { checksum(reinterpret_cast<const u8*>(data), bytes, number, trailer); });
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("checksum")
    source, found = folder / "checksum.cpp", folder / "checksum.so"
    source.write_text(f'#include "{host_halo.HEADER}"\n{sums.KERNEL.read_text()}{LAUNCH}')
    flags = ["-std=c++20", "-O2", "-w", "-shared", "-fPIC", "-pthread", "-DTHREADS=1"]
    subprocess.run(["g++", *flags, "-o", str(found), str(source)], check=True)
    return found


def reference(array: Any) -> int:
    """Sum of hashed words, in NumPy."""
    flat = np.zeros(-(-array.nbytes // 8) * 8, np.uint8)
    flat[: array.nbytes] = array.reshape(-1).view(np.uint8)
    words = flat.view("<u8")
    bits = words ^ (np.arange(1, words.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((bits ^ (bits >> np.uint64(31))).sum(dtype=np.uint64))


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 24, 1023, 40000])
@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_the_kernel_sums_words_of_any_alignment(library: Path, nbytes: int, offset: int) -> None:
    found = DeviceSums(QueuedBackend(), HostTables(library))
    array = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes + 16), "u1").copy()
    start = -array.ctypes.data % 8 + offset
    part = array[start : start + nbytes]
    table = found.trailers(2)
    found.write(table[1], part, 77)
    assert found.read(table).tolist() == [[0, 0, 0], [77, nbytes, reference(part)]]


def test_swapped_words_and_any_flipped_bit_change_both_checksums(library: Path) -> None:
    array = np.random.default_rng(0).integers(0, 1 << 60, 20)
    for one in (HostSums(), DeviceSums(QueuedBackend(), HostTables(library))):

        def value(changed: Any, one: Any = one) -> int:
            table = one.trailers(1)
            one.write(table[0], changed, 1)
            return int(one.read(table)[0, 2])

        swapped = array.copy()
        swapped[[3, 9]] = swapped[[9, 3]]
        values = {value(array), value(swapped)}
        for bit in range(array.nbytes * 8):
            flipped = array.copy()
            flipped.view("u1")[bit // 8] ^= 1 << bit % 8
            values.add(value(flipped))
        assert len(values) == array.nbytes * 8 + 2


@pytest.mark.parametrize("fault", ["none", "bit", "old", "result"])
def test_device_arrays_are_checked_by_the_kernel(library: Path, fault: str) -> None:
    def rank(control: ThreadComm) -> Any:
        world = opened(control, "full")
        assert isinstance(world.control, CheckedControl)
        arrays = world.control.checked(
            DamagingComm(control.hub, control.rank, fault), DeviceSums(QueuedBackend(), HostTables(library))
        )
        world = dataclasses.replace(world, arrays=arrays)
        try:
            for _ in range(3):
                world.all_reduce(np.ones(9, "f4"))
            return exchange_three(world)
        except RunError as failure:
            control.abort(1)
            return failure

    found = run_ranks(2, rank)
    assert any(isinstance(one, Damaged) for one in found) == (fault != "none"), found
    if fault in ("bit", "old"):
        assert isinstance(found[1], Damaged)
