"""Kernels of several steps that a run measures on its first passes, on ranks as threads, with made-up times.

The kernels are compiled for the host. Whatever is measured, the results are those of a plain NumPy loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from meshrun.runner.compiler.cuda.steps.layout import Choice, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel, kept_form
from meshrun.runner.report.summary import _choice_notes
from meshrun.runner.steps import halo_path, kernel_trial, stepper
from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import NotCompiled

pytestmark = pytest.mark.skipif(host_steps.GXX is None, reason="needs g++")
WIDTHS = ((1, 1), (1, 1))
ELEMENTS = Tuning(2, 2, 2, 2, rows=4)
RIVALS = Choice(2, ELEMENTS), Choice(3, ELEMENTS), Choice(2, Tuning(2, 2, 1, 2, rows=9))
SHAPE, STEPS = (31, 70), 190  # more than nine turns take
CLOCK = threading.local()  # of each rank


class PricedBackend(GraphBackend):
    """A device whose time is what the launches of kernels are said to take."""

    def mark(self) -> float:
        return float(getattr(CLOCK, "now", 0.0))


class AtOnce:
    """Compiles when it is asked to, in the calling thread."""

    def __init__(self, workers: int, name: str, begin: Callable[[], None]) -> None:
        begin()

    def submit(self, act: Callable[[int], bool], number: int) -> Future[bool]:
        done: Future[bool] = Future()
        done.set_result(act(number))
        return done

    def shutdown(self, cancel_futures: bool) -> None: ...


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trial")


@pytest.fixture(scope="session")
def halo_library(folder: Path) -> Path:
    return compiled(folder)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path, halo_library: Path) -> Any:
    """Return what takes steps with rivals, checks the results, and returns the record of the choice.

    price: of a step by a choice on a rank, in seconds.
    """
    monkeypatch.setattr(kernel_trial, "FIRST_QUESTION", 0.006)
    monkeypatch.setattr(kernel_trial, "TURN", 0.008)
    monkeypatch.setattr(kernel_trial, "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(stepper, "EAGER", 2)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4,))
    monkeypatch.setattr(step_runs, "QueuedBackend", PricedBackend)
    monkeypatch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(halo_library))
    monkeypatch.setattr(halo_path, "find_peers", lambda world, choice, ndim: HostPeers(world.control))

    def run(
        price: Callable[[Choice, int], float],
        *,
        rivals: Sequence[Choice] = RIVALS,
        steps: int = STEPS,
        fails: Sequence[Choice] = (),
        shape: tuple[int, int] = SHAPE,
        boundary: str = "wrap",
        **options: Any,
    ) -> dict[str, Any]:
        made = []
        seen: list[Choice] = []

        def launched(kernel: HostStepKernel) -> None:
            assert kernel.choice is not None
            choice = kernel.choice.choice
            seen.append(choice)
            CLOCK.now = getattr(CLOCK, "now", 0.0) + choice.steps * price(choice, kernel.number)

        def prepare(self: HostStepKernel, steps: int, arrays: Any, *, sends: bool = False) -> None:
            if self.choice is not None and self.choice.choice in fails:
                raise NotCompiled("too complex")
            prepare_steps(self, steps, arrays, sends=sends)

        def compile_for(
            device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
            shape: Any, row: int,
        ) -> Any:  # fmt: skip
            choice = ChosenKernel(rivals[0], "predicted", tuple(rivals), 1e-3, tmp_path / "kept.steps")
            kernel = HostStepKernel(program, widths, arithmetic, feeds, boundary, cval, choice, row)
            kernel.folder, kernel.number, kernel.late = folder, len(made) + 1, launched
            made.append(kernel)
            return kernel, "g++"

        prepare_steps = HostStepKernel.prepare_steps
        monkeypatch.setattr(HostStepKernel, "prepare_steps", prepare)
        monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
        function = mixed(WIDTHS, 1)
        job = meshrun.map_blocks(halo=WIDTHS, boundary=boundary, cval=9)(function)
        start = np.random.default_rng(5).integers(0, 2**32, shape, np.uint32)
        (found,), record = stepped(tmp_path, job, [start], steps, fuse="require", devices=True, **options)
        monkeypatch.setattr(HostStepKernel, "prepare_steps", prepare_steps)
        (wanted,) = plain_loop(function, [start], steps, WIDTHS, boundary, [0], 9)
        assert np.array_equal(found, wanted)
        return {"tried": set(seen), "last": seen[-1], **record["steps"]}

    return run


def fastest(wanted: Choice) -> Callable[[Choice, int], float]:
    return lambda choice, rank: 1e-3 if choice == wanted else 2e-3


@pytest.mark.parametrize(
    ("options", "best"),
    [
        ({}, 1),
        ({"ranks": 2, "boundary": "reflect"}, 2),
        ({"ranks": 3, "halo": "direct"}, 1),
        ({"ranks": 4, "grid": "2x2"}, 1),
        ({"ranks": 2, "overlap": True}, 2),
    ],
)
def test_the_fastest_takes_the_other_steps_and_is_kept(
    run: Any, tmp_path: Path, options: Any, best: int
) -> None:
    found = run(fastest(RIVALS[best]), **options)
    assert found["tried"] >= set(RIVALS)
    assert found["steps_per_kernel"] == RIVALS[best].steps
    speedup = pytest.approx(2)
    choice = {"source": "measured", "compared": 3, "rivals": 3, "speedup": speedup, "ignored": None}
    assert found["kernel_choice"] == choice
    assert cached_files.read(tmp_path / "kept.steps") == kept_form(RIVALS[best])
    assert found["graph"] is True


def test_the_slowest_rank_counts(run: Any) -> None:
    """The second choice is fast on rank 0 alone; the third on both, a little less."""
    price = {RIVALS[0]: (2e-3, 2e-3), RIVALS[1]: (1e-4, 3e-3), RIVALS[2]: (1e-3, 1e-3)}
    found = run(lambda choice, number: price[choice][(number - 1) % 2], ranks=2, halo="direct")
    assert found["last"] == RIVALS[2]
    assert found["kernel_choice"]["speedup"] == pytest.approx(2)


def test_a_little_faster_is_noise(run: Any) -> None:
    found = run(lambda choice, rank: 1e-3 if choice == RIVALS[1] else 1.01e-3)
    assert found["last"] == RIVALS[0]
    assert found["kernel_choice"]["speedup"] == 1


def test_a_choice_that_does_not_compile_is_left_out(run: Any) -> None:
    found = run(fastest(RIVALS[1]), fails=RIVALS[1:2], ranks=2, halo="direct")
    assert found["last"] == RIVALS[0]
    assert RIVALS[1] not in found["tried"]
    assert found["kernel_choice"]["compared"] == 2


def test_choices_with_halos_wider_than_a_block_are_left_out(run: Any) -> None:
    rivals = (*RIVALS, Choice(5, Tuning(4, 2, 2, 2, rows=4)))
    found = run(fastest(RIVALS[1]), rivals=rivals, ranks=3, shape=(13, 70), halo="direct")
    assert found["kernel_choice"]["compared"] == 3
    assert found["steps_per_kernel"] == 3


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 40},  # three turns
        {"every": 9, "frames": "frames.npy"},
        {"steps_per_exchange": 2},
    ],
)
def test_runs_that_cannot_measure_take_the_predicted_choice(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(fastest(RIVALS[1]), **options)
    assert found["last"] == RIVALS[0]
    assert found["kernel_choice"]["source"] == "predicted"
    assert not (tmp_path / "kept.steps").exists()


def test_a_run_does_not_wait_for_a_compiler(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not compiled when the run ends is not measured."""

    class Later(AtOnce):
        def submit(self, act: Callable[[int], bool], number: int) -> Future[bool]:
            return Future()

    monkeypatch.setattr(kernel_trial, "ThreadPoolExecutor", Later)
    found = run(fastest(RIVALS[1]))
    assert found["tried"] == {RIVALS[0]}
    assert found["kernel_choice"]["source"] == "predicted"


def test_another_thread_compiles(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run asks for it after twice as many steps each time."""
    asked = []
    ask = kernel_trial.KernelTrial._ask

    def waits(self: kernel_trial.KernelTrial) -> None:
        asked.append(self._stepper.done)
        if len(asked) == 3:
            for one in self._compiling:
                one.result(60)
        ask(self)

    monkeypatch.setattr(kernel_trial, "ThreadPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(kernel_trial.KernelTrial, "_ask", waits)
    found = run(fastest(RIVALS[1]), steps=260)
    assert found["kernel_choice"]["source"] == "measured"


def test_the_summary_says_how_the_kernel_was_chosen() -> None:
    choice: dict[str, Any] = {
        "source": "predicted", "compared": None, "rivals": None, "speedup": None, "ignored": None,
    }  # fmt: skip
    assert _choice_notes(choice) == []
    assert "earlier run" in _choice_notes({**choice, "source": "kept"})[0]
    measured = {**choice, "source": "measured", "compared": 3, "rivals": 5, "speedup": 1.2149}
    assert "3 of 5 choices, 1.21 times" in _choice_notes(measured)[0]
    assert "/a/b.steps" in _choice_notes({**choice, "ignored": "/a/b.steps"})[0]
