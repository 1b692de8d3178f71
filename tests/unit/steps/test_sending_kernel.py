"""Kernels of several steps that exchange the halos themselves: compiled for the host, with ranks as threads
that store into each other's blocks. The results are those of a plain NumPy loop, to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import host_steps
import numpy as np
import pytest
import step_runs
from host_halo import HostPeers, HostTables, compiled
from host_steps import HostStepKernel
from numpy_kernel import mixed
from queued_device import GraphBackend
from step_runs import plain_loop, stepped

import meshrun
from meshrun.runner.arrays.halo import direct
from meshrun.runner.compiler.cuda.steps.layout import Choice, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel
from meshrun.runner.errors import RunError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.run.declare import distribute
from meshrun.runner.steps import halo_path, stepper, steps_per_kernel

pytestmark = pytest.mark.skipif(host_steps.GXX is None, reason="needs g++")
STEPS = 11  # of a kernel of 3 and of one of 2
TUNINGS = {
    "elements": Tuning(2, 2, 2, 2, rows=4),
    "vectors": Tuning(4, 1, 2, 3, rows=5, vectors=True),
    "one strip": Tuning(2, 2, 1, 2, rows=99),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sending")


@pytest.fixture(scope="session")
def halo_library(folder: Path) -> Path:
    return compiled(folder)


class Runs:
    """Has runs on threads take their steps by kernels on the host, which exchange halos."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        folder: Path,
        halo_library: Path,
        tuning: Tuning,
        most: int = 3,
        late: Callable[[HostStepKernel], None] = lambda kernel: None,
        changes: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.made: list[HostStepKernel] = []

        def compile_for(
            device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
            shape: Any, row: int,
        ) -> Any:  # fmt: skip
            choice = ChosenKernel(Choice(most, tuning), "predicted")
            kernel = HostStepKernel(program, widths, arithmetic, feeds, boundary, cval, choice, row)
            kernel.folder, kernel.number, kernel.changes = folder, len(self.made) + 1, changes
            kernel.late = late
            self.made.append(kernel)
            return kernel, "g++"

        patch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
        patch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(halo_library))
        patch.setattr(halo_path, "find_peers", lambda world, choice, ndim: HostPeers(world.control))

    @property
    def sending_launches(self) -> int:
        return min(one.sending_launches for one in self.made)


def job_of(widths: Any, boundary: str, fields: int) -> tuple[Any, Any]:
    function = mixed(widths, fields)
    return function, meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=fields)(function)


def check(
    tmp_path: Path,
    job: Any,
    function: Any,
    widths: Any,
    boundary: str,
    shape: Any,
    fields: int,
    **options: Any,
) -> tuple[bool, Any]:
    """Whether steps on ranks are a plain loop; and the record."""
    random = np.random.default_rng(5)
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(fields)]
    expected = plain_loop(function, arrays, STEPS, widths, boundary, range(fields), 9)
    found, record = stepped(tmp_path, job, arrays, STEPS, fuse="require", halo="direct", **options)
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True)), record


WIDTHS = {
    "one field": (((1, 1), (1, 1)), 1),
    "two fields": (((1, 2), (0, 1)), 2),
    "before": (((1, 0), (1, 1)), 1),
}


WAYS = [
    ("one field", "elements", 2),
    ("two fields", "vectors", 3),
    ("one field", "vectors", 3),
    ("two fields", "one strip", 2),
    ("before", "elements", 4),
]


@pytest.mark.parametrize(
    ("of", "tuning", "ranks", "boundary"),
    [  # one of the first two with each boundary by day, in turn
        pytest.param(*way, boundary, marks=[] if turn == number % 2 else [pytest.mark.nightly])
        for turn, way in enumerate(WAYS)
        for number, boundary in enumerate(BOUNDARIES)
    ],
)
def test_steps_are_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path, boundary: str, of: str,
    tuning: str, ranks: int,
) -> None:  # fmt: skip
    widths, fields = WIDTHS[of]
    function, job = job_of(widths, boundary, fields)
    runs = Runs(monkeypatch, folder, halo_library, TUNINGS[tuning])
    same, record = check(tmp_path, job, function, widths, boundary, (47, 70), fields, ranks=ranks)
    assert same
    assert record["steps"]["halo"] == "direct"
    assert record["steps"]["exchanges"] == 3
    assert runs.sending_launches == 4


@pytest.mark.parametrize(
    ("of", "tuning", "ranks", "boundary"),
    [
        ("one field", "vectors", 2, "wrap"),
        ("two fields", "elements", 3, "reflect"),
        ("before", "one strip", 3, "wrap"),
        ("two fields", "vectors", 2, "constant"),
    ],
)
def test_kernels_between_two_exchanges_send_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path, boundary: str, of: str,
    tuning: str, ranks: int,
) -> None:  # fmt: skip
    """A neighbour may still use the halo in one of them: ranks tell each other that they are ready."""
    widths, fields = WIDTHS[of]
    function, job = job_of(widths, boundary, fields)
    runs = Runs(monkeypatch, folder, halo_library, TUNINGS[tuning])
    same, record = check(
        tmp_path, job, function, widths, boundary, (47, 70), fields, ranks=ranks, steps_per_exchange=6
    )
    assert same
    assert record["steps"]["halo"] == "direct"
    assert (record["steps"]["steps_per_kernel"], record["steps"]["steps_per_exchange"]) == (3, 6)
    assert record["steps"]["exchanges"] == 1
    assert runs.sending_launches == 0


def test_graphs_hold_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path
) -> None:
    monkeypatch.setattr(steps_per_kernel, "KERNELS_BETWEEN", (1,))
    monkeypatch.setattr(stepper, "EAGER", 2)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4,))
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    widths, fields = WIDTHS["one field"]
    function, job = job_of(widths, "wrap", fields)
    runs = Runs(monkeypatch, folder, halo_library, TUNINGS["elements"])
    same, record = check(tmp_path, job, function, widths, "wrap", (47, 70), fields, ranks=2, devices=True)
    assert same
    assert record["steps"]["graph"] is True
    assert record["steps"]["exchange_fraction"] is None
    assert runs.sending_launches == 4


@pytest.mark.parametrize("options", [{"grid": "2x2", "ranks": 4}, {"overlap": True, "ranks": 2}])
def test_other_runs_exchange_beside_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path, options: Any
) -> None:
    widths, fields = WIDTHS["one field"]
    function, job = job_of(widths, "wrap", fields)
    runs = Runs(monkeypatch, folder, halo_library, TUNINGS["elements"])
    same, record = check(tmp_path, job, function, widths, "wrap", (47, 70), fields, **options)
    assert same
    assert record["steps"]["exchange_fraction"] is not None
    assert runs.sending_launches == 0


# Functions of whole arrays


def closed(u):
    """No flow through the edges but one, a row that is held, and a slope."""
    new = u.copy()
    new[1:-1, 1:-1] = u[1:-1, 1:-1] * 3 + u[2:, 1:-1] - u[:-2, 1:-1] + u[1:-1, 2:] * 2
    new[20:22] += np.arange(u.shape[1], dtype=u.dtype)
    new[0] = 7
    new[-1] = new[-2]
    new[:, 0] = new[:, 1]
    new[:, -1] = u[:, -3]
    return new


def around(u):
    """Edges between two stages, which the second one reads around the ends."""
    new = u * 3 + np.roll(u, 1, 0) + np.roll(u, -1, 1)
    new[0] = 5
    return new - np.roll(new, 1, 0)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (closed, {"ranks": 3, "halo": "direct"}),
        (closed, {"ranks": 4, "grid": "2x2"}),
        (around, {"ranks": 2, "halo": "direct"}),
        *(
            pytest.param(function, options, marks=pytest.mark.nightly)
            for function in (closed, around)
            for options in ({"ranks": 1}, {"ranks": 2, "overlap": True}, {"ranks": 2, "copies": "one"})
        ),
    ],
)
def test_functions_of_whole_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path, function: Any,
    options: dict[str, Any],
) -> None:  # fmt: skip
    runs = Runs(monkeypatch, folder, halo_library, TUNINGS["vectors"])
    array = np.random.default_rng(5).integers(0, 2**32, (47, 72), np.uint32)
    (found,), _ = stepped(tmp_path, distribute(function), [array], STEPS, fuse="require", **options)
    wanted = array
    for _ in range(STEPS):
        wanted = function(wanted)
    assert found.tobytes() == wanted.tobytes()
    assert all(one.launched >= 4 for one in runs.made)
    assert runs.sending_launches == (4 if options.get("halo") == "direct" else 0)


# What may go wrong between ranks. Late ranks: a kernel waits for their rows.


class Late:
    """A rank launches each kernel only when another one has ended the next, or cannot within some time."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.runs: Runs | None = None

    def __call__(self, kernel: HostStepKernel) -> None:
        assert self.runs is not None
        other = self.runs.made[self.rank - 1]
        if kernel.number != self.rank + 1:
            return
        end = time.monotonic() + 0.4
        while time.monotonic() < end and other.launched < kernel.launched + 2:
            time.sleep(0.001)


@pytest.mark.parametrize("boundary", ["wrap", "reflect"])
def test_a_late_rank_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path, boundary: str
) -> None:
    widths, fields = WIDTHS["one field"]
    function, job = job_of(widths, boundary, fields)
    late = Late(1)
    late.runs = Runs(monkeypatch, folder, halo_library, TUNINGS["elements"], late=late)
    same, _ = check(tmp_path, job, function, widths, boundary, (47, 70), fields, ranks=3)
    assert same


SLOWLY = "timespec pause{0, 100000000}; nanosleep(&pause, nullptr);"
AWAITED = "wait_for(all.arrived + side, number * EXCHANGE"
STORED = "    __syncwarp();  // other lanes"
FAULTS = {
    "nobody is waited for": (AWAITED, "true || " + AWAITED),
    "an earlier kernel's count is enough": (AWAITED, AWAITED.replace("number", "(number - (number > 0))")),
    "the rank after is not waited for": ("if (ready && near.after)", "if (false)"),
    "one strip's share is enough": ("EXCHANGE - (all.before_strips - 1) : 1);", f"EXCHANGE : 1); {SLOWLY}"),
    "a share is added before the rows are stored": (
        STORED,
        "if (threadIdx.x % 32 == 0 && near.after) "
        f"{{ add_release(all.after_count, EXCHANGE); {SLOWLY} }}\n{STORED}",
    ),
    "a row too few to the rank before": ("int(all.before_rows##n)", "int(all.before_rows##n) - 1"),
    "a row too few to the rank after": ("int(all.after_rows##n)", "int(all.after_rows##n) + 1"),
    "only the first strip takes part": ("first < all.near_rows", "first < 1"),
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.nightly] if turn else []) for turn, one in enumerate(FAULTS)],
)
def test_a_broken_kernel_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path, fault: str
) -> None:
    widths, fields = WIDTHS["one field"]
    function, job = job_of(widths, "wrap", fields)
    monkeypatch.setattr(direct, "PATIENCE", 2.0)
    tuning = Tuning(2, 2, 1, 2, rows=2)
    late = Late(1)
    late.runs = Runs(monkeypatch, folder, halo_library, tuning, late=late, changes=[FAULTS[fault]])
    same = False
    with suppress(RunError):  # a neighbour was waited for in vain
        same, _ = check(tmp_path, job, function, widths, "wrap", (47, 70), fields, ranks=3)
    assert not same


def test_a_dead_neighbour_is_named_and_nobody_spins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, halo_library: Path
) -> None:
    """One rank leaves out its kernels from the second on."""
    widths, fields = WIDTHS["one field"]
    function, job = job_of(widths, "reflect", fields)
    monkeypatch.setattr(direct, "PATIENCE", 0.3)
    runs = Runs(monkeypatch, folder, halo_library, TUNINGS["elements"])
    step_kernel = HostStepKernel._step_kernel

    def dying(self: HostStepKernel, *about: Any) -> Any:
        kernel, launch, registers = step_kernel(self, *about)

        def launch_once(*given: Any, **named: Any) -> None:
            if self is not runs.made[1] or self.sending_launches == 0:
                launch(*given, **named)

        return kernel, launch_once, registers

    monkeypatch.setattr(HostStepKernel, "_step_kernel", dying)
    begin = time.monotonic()
    with pytest.raises(RunError, match="waited in vain for the halo of its neighbour, rank"):
        check(tmp_path, job, function, widths, "reflect", (47, 70), fields, ranks=3)
    assert time.monotonic() - begin < 30
