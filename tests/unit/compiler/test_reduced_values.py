"""The kernel that combines what several ranks have, and computes values of it, on threads of the host."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HEADER
from host_small import SLOTS, compiled, opened
from nvrtc_log import log_of

from meshrun.runner.arrays import exact_sum
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.compiler.cuda.values import SUM_COPIES, SUM_WORDS, BestKey, SumKey, emit_reduced
from meshrun.runner.compiler.trace.graph import Graph, Node

F8, I4 = np.dtype("f8"), np.dtype("i4")
RANKS, SUMS = 3, 2
LAUNCH = """
extern "C" void run(uint64* slots, uint64* keys, uint64* sums, uint64* totals, const Members* members) {
    run_grid(1, [=] { values(slots, keys, sums, totals, *members); });
}
"""


def difference() -> Node:
    graph = Graph()
    return graph.operation("subtract", F8, [graph.scalar(1, F8), graph.scalar(2, F8)])


def kernel() -> Any:
    """Of the largest integer, of two sums, and of their difference."""
    keys = [BestKey(1, "maximum", I4, I4), *(SumKey(n, F8, F8, added=True) for n in range(SUMS))]
    return emit_reduced([*enumerate(keys), (3, difference())], SUMS * SUM_WORDS, 2, RANKS)


def cells_of(rank: int, turn: int, number: int) -> Any:
    random = np.random.default_rng([rank, turn, number])
    return random.standard_normal(50) * 2.0 ** random.integers(-300, 300, 50)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_ranks_get_the_same_values_of_all_cells(tmp_path: Path) -> None:
    small, source = compiled(tmp_path, []), tmp_path / "values.cpp"
    source.write_text(f'#include "{HEADER}"\n#include "{SLOTS}"\n{kernel().source}{LAUNCH}')
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-DTHREADS=1"]
    subprocess.run(["g++", *flags, "-o", str(tmp_path / "values.so"), str(source)], check=True)
    for rank in range(RANKS):  # which have static variables of their own
        shutil.copy(tmp_path / "values.so", tmp_path / f"values{rank}.so")

    def body(control: ThreadComm) -> list[bytes]:
        collectives, found = opened(control, small), []
        library = ctypes.CDLL(str(tmp_path / f"values{control.rank}.so"))
        slots, keys = np.zeros(4, np.uint64), np.zeros(2, np.uint64)
        sums = np.zeros((SUMS, SUM_COPIES, SUM_WORDS), np.int64)
        totals = np.zeros((SUMS, SUM_WORDS), np.uint64)
        for turn in range(6):
            keys[1] = (1 << 31) + 10 * turn + (control.rank + turn) % RANKS
            for number in range(SUMS):
                cells = cells_of(control.rank, turn, number)
                for first in range(0, 50, 10):
                    exact_sum.add_cells(sums[number, first + control.rank], np, cells[first : first + 10])
            given = (slots, keys, sums, totals, collectives.members)
            library.run(*(ctypes.c_void_p(one.ctypes.data) for one in given))
            assert not any(one.any() for one in (keys, sums, totals))
            found.append(slots.tobytes())
        return found

    found = run_ranks(RANKS, body, timeout=60)
    assert found[0] == found[1] == found[2]
    for turn, slots in enumerate(found[0]):
        assert np.frombuffer(slots, np.int32)[0] == 10 * turn + RANKS - 1
        expected = []
        for number in range(SUMS):
            words = exact_sum.zero_words()
            for rank in range(RANKS):
                exact_sum.add_cells(words, np, cells_of(rank, turn, number))
            expected.append(float(exact_sum.rounded(words, F8)))
        assert np.frombuffer(slots)[1:].tolist() == [*expected, expected[0] - expected[1]]


def test_it_compiles_for_gpus() -> None:
    assert "warning" not in log_of(kernel(), "90")
