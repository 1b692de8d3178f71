"""Collectives of a few KiB by stores into other ranks' memory: the kernels' own code on the host."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_small import all_instances, compiled, opened
from nvrtc_log import log_of_text

from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.comm.small.collectives import (
    CAPACITY,
    KERNELS,
    TYPES,
    SmallCollectives,
    is_small,
)
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.kernel_text import with_headers

LATE = "    const unsigned flag = unsigned(number);\n    Slot* slot"  # in the function that stores
READING = "    const unsigned flag = unsigned(number);\n    u64 begin"  # in the function that waits
DELAY = "if (members.rank == 1 && pair % 5 == 1) usleep(200);"
USED = ["all_reduce<float, Sum, 3>", "all_to_all<u64, 3>"]  # by `repeated`, of three ranks
DELAYS = ((LATE, DELAY + LATE), (READING, "if (members.rank == 0 && pair % 7 == 1) usleep(200);" + READING))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("small"), all_instances((2, 3)))


def among(size: int, library: Path, body: Callable[[ThreadComm, SmallCollectives], Any]) -> list[Any]:
    def rank_main(control: ThreadComm) -> Any:
        return body(control, opened(control, library))

    return run_ranks(size, rank_main, timeout=60)


def cells_of(rank: int, count: int, dtype: str) -> Any:
    random = np.random.default_rng([rank, count])
    if dtype.startswith("f"):
        return (random.standard_normal(count) * 10.0 ** random.integers(-8, 9, count)).astype(dtype)
    return random.integers(-(1 << 30), 1 << 30, count).astype(dtype)


def in_rank_order(arrays: list[Any], operation: str) -> Any:
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[operation]
    total = arrays[0].copy()
    for array in arrays[1:]:
        combine(total, array, out=total)
    return total


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_get_the_bits_of_a_reduction_in_rank_order(size: int, dtype: str, library: Path) -> None:
    counts, operations = (1, 2, 3, 7, 1023, 1025, 4097), ("sum", "max", "min")
    operations = operations if dtype[0] in "iu" else operations[:1]
    cases = [(count, operation) for count in counts for operation in operations]

    def body(control: ThreadComm, small: SmallCollectives) -> Any:
        found = []
        for count, operation in cases:
            whole = np.zeros(count + 2, dtype)  # a view that is not aligned to pairs, with cells around it
            array = whole[1:-1]
            array[...] = cells_of(control.rank, count, dtype)
            assert is_small(array, operation, size)
            small.all_reduce(array, operation)
            found.append(whole)
        assert small.failure is None
        return found

    found = among(size, library, body)
    for at, (count, operation) in enumerate(cases):
        expected = in_rank_order([cells_of(rank, count, dtype) for rank in range(size)], operation)
        for rank in range(size):
            assert found[rank][at][1:-1].tobytes() == expected.tobytes()
            assert not found[rank][at][[0, -1]].any()


@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_gets_its_part_of_every_other(size: int, library: Path) -> None:
    lengths = (1, 2, 3, 4, 8, 12, 100, 4096, 4099)

    def sent(rank: int, nbytes: int) -> Any:
        return np.random.default_rng([rank, nbytes]).integers(0, 256, size * nbytes).astype(np.uint8)

    def body(control: ThreadComm, small: SmallCollectives) -> Any:
        found = []
        for nbytes in lengths:
            for offset in (0, 1, 4):
                target = np.zeros(size * nbytes + 16, np.uint8)
                source = np.concatenate([np.zeros(offset, np.uint8), sent(control.rank, nbytes)])[offset:]
                small.all_to_all(source, target[offset : offset + source.size])
                found.append(target)
        return found

    found = among(size, library, body)
    cases = [(nbytes, offset) for nbytes in lengths for offset in (0, 1, 4)]
    for rank in range(size):
        for target, (nbytes, offset) in zip(found[rank], cases, strict=True):
            part = slice(rank * nbytes, (rank + 1) * nbytes)
            expected = np.concatenate([sent(peer, nbytes)[part] for peer in range(size)])
            assert target[offset : offset + expected.size].tobytes() == expected.tobytes()
            assert not target[:offset].any()
            assert not target[offset + expected.size :].any()


def repeated(control: ThreadComm, small: SmallCollectives) -> bool:
    """Whether operations of both kinds and of many sizes, on ranks at different times, are right."""
    right, size = True, control.size
    for turn in range(12):
        for count in (1, 40, 2 + 9 * (turn % 4), 1100 if turn % 6 == 5 else 3):
            array = cells_of(control.rank, count, "float32")
            array += np.float32(turn)
            small.all_reduce(array, "sum")
            each = [cells_of(rank, count, "float32") + np.float32(turn) for rank in range(size)]
            right &= array.tobytes() == in_rank_order(each, "sum").tobytes()
        source = 100.0 * control.rank + np.arange(size) + turn
        target = np.full(size, np.nan)
        small.all_to_all(source, target)
        right &= bool((target == 100.0 * np.arange(size) + control.rank + turn).all())
        if small.failure is not None:
            return False
    return right


def test_ranks_at_different_times(tmp_path: Path) -> None:
    library = compiled(tmp_path, USED, DELAYS)
    assert among(3, library, repeated) == [True] * 3


# What a kernel must do, and what stands in its place: the results are wrong, or a wait does not end.
NEEDED = {
    "the wait": ("if (missing < 0) return true;", "return true;"),
    "the first word": ("slot.low_flag != flag || slot.high_flag != flag", "slot.high_flag != flag"),
    "the second word": ("slot.low_flag != flag || slot.high_flag != flag", "slot.low_flag != flag"),
    "two buffers": ("i64(number % 2)", "i64(0)"),
    "the order of ranks": (
        "Cells<T> total = cells[0];",
        "if (members.rank) { Cells<T> t = cells[0]; cells[0] = cells[SIZE - 1]; cells[SIZE - 1] = t; }\n"
        "        Cells<T> total = cells[0];",
    ),
    "every rank": (
        "continue;\n            const Slot slot",
        "continue;\n            if (peer == 2) continue;\n            const Slot slot",
    ),
}


@pytest.mark.parametrize("what", NEEDED)
def test_what_is_left_out_is_noticed(what: str, tmp_path: Path) -> None:
    library = compiled(tmp_path, USED, [*DELAYS, NEEDED[what]])

    def body(control: ThreadComm) -> tuple[bool, SmallCollectives]:
        small = opened(control, library, patience=0.5)
        return repeated(control, small), small  # kept: others may still store into its memory

    assert not all(right for right, _ in run_ranks(3, body, timeout=60))


@pytest.mark.parametrize("refreshed", [True, False])
def test_a_flag_of_2_to_the_32_operations_ago_is_not_taken(refreshed: bool, tmp_path: Path) -> None:
    left_out = [] if refreshed else [("number % REFRESH < 2 || ", "")]
    library = compiled(tmp_path, ["all_reduce<double, Sum, 2>"], [DELAYS[0], *left_out])

    def body(control: ThreadComm, small: SmallCollectives) -> bool:
        small.all_reduce(np.ones(64), "sum")
        for number in (2**31 - 1, 2**31, 2**31 + 1, 2**32):  # as if many operations of few cells had been
            small._numbers.fill(number)
            array = np.full(64 if number == 2**32 else 1, 5.0)
            small.all_reduce(array, "sum")
        return bool((array == 10).all())

    assert all(among(2, library, body)) == refreshed


def test_blocks_of_several_threads(tmp_path: Path) -> None:
    library = compiled(tmp_path, USED, threads=4)
    copies = [tmp_path / f"rank{rank}.so" for rank in range(3)]
    for copy in copies:
        shutil.copy(library, copy)
    found = run_ranks(3, lambda control: repeated(control, opened(control, copies[control.rank])), timeout=60)
    assert found == [True] * 3


def test_a_rank_that_does_not_come_is_named(library: Path) -> None:
    def body(control: ThreadComm) -> tuple[str, SmallCollectives]:
        small, array = opened(control, library, patience=0.05), np.ones(3)
        if control.rank == 1:
            return "", small
        began = time.perf_counter()
        small.all_reduce(array, "sum")
        assert time.perf_counter() - began >= 0.05
        assert (array == 1).all()  # nothing incomplete is stored
        return str(small.failure), small

    found = [said for said, _ in run_ranks(3, body, timeout=60)]
    assert "rank 0 waited in vain for rank 1" in found[0]
    assert "rank 2 waited in vain for rank 1" in found[2]


def test_which_arrays_are_small() -> None:
    limit = CAPACITY // 4
    assert is_small(np.zeros(limit, np.float32), "sum", 2)
    assert not is_small(np.zeros(limit + 1, np.float32), "sum", 2)
    assert is_small(np.zeros(limit // 4, np.float32), "sum", 5)
    assert not is_small(np.zeros(limit // 4 + 1, np.float32), "sum", 5)
    assert not is_small(np.zeros(0, np.float32), "sum", 2)
    assert not is_small(np.zeros(1, np.float32), "max", 2)
    assert not is_small(np.zeros(1, np.int64), "prod", 2)
    assert not is_small(np.zeros(1, np.float16), "sum", 2)


def test_the_largest_operation(library: Path) -> None:
    def body(control: ThreadComm, small: SmallCollectives) -> bool:
        array = np.full(CAPACITY // 8, 1.0 + control.rank)
        small.all_reduce(array, "sum")
        return bool((array == 3).all())

    assert among(2, library, body) == [True, True]


def test_memory_that_cannot_be_opened(library: Path) -> None:
    def body(control: ThreadComm) -> str:
        try:
            opened(control, library, shut={1: "no peer access"})
        except Unreachable as reason:
            return str(reason)
        return ""

    assert run_ranks(2, body, timeout=60) == ["", "no peer access"]


@pytest.mark.parametrize("architecture", ["80", "90", "100"])
def test_the_kernels_compile_without_a_warning_and_spill_nothing(architecture: str) -> None:
    for name in ("all_reduce<double, Sum, 8>", "all_reduce<u64, Max, 2>", "all_to_all<u64, 8>"):
        said = log_of_text(with_headers(KERNELS), name, ("--fmad=false",), architecture)
        assert re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
        assert set(re.findall(r"(\d+) bytes spill", said)) == {"0"}
        assert "warning" not in said
