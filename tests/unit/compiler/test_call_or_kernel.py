"""On a CPU, a kernel that may be slower than the function it replaces is measured once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.compiler import call_or_kernel
from meshrun.runner.compiler.call_or_kernel import is_slower, may_be_slower
from meshrun.runner.compiler.decide import fused_alone
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.run.prepare import fused
from meshrun.runner.system.compiler import Compiler
from meshrun.runner.world.world import open_world


def again(block: Any) -> Any:
    """Few operations beside an arcsine, whose loop in NumPy may be faster."""
    slow = np.arcsin(block)
    return slow[1:-1, 2:] + slow[1:-1, :-2] - slow[1:-1, 1:-1]


def polynomial(block: Any) -> Any:
    """Many operations beside few sines."""
    total = block[1:-1, 1:-1]
    for factor in range(2, 20):
        total = total * block[1:-1, 2:] + factor
    return total


def in_branch(block: Any) -> Any:
    """Sines of two cells that few cells need: no rows of them are kept."""
    wave = np.sin(block)
    few = wave[1:-1, 2:] - wave[1:-1, :-2]
    for factor in range(2, 20):
        few = few * block[1:-1, 2:] + factor
    return np.where(block[1:-1, 1:-1] > 9, few, block[1:-1, 1:-1])


def planned(function: Callable[..., Any], ranks: int = 1, kind: str = "f4", **declared: Any) -> Task:
    job = meshrun.map_blocks(halo=1, **declared)(function)
    return plan_task(job, {}, (((4000, 40), np.dtype(kind)),), ranks)


def kernel_of(task: Task) -> Any:
    return fused_alone(CpuBackend().device, task, "require", "strict")[0].kernel


@pytest.mark.parametrize(
    ("function", "kind", "unsure"),
    [
        (again, "f4", True),
        (lambda b: np.sin(b[1:-1, 1:-1]) + b[1:-1, 2:], "f4", True),
        (lambda b: np.sin(b[1:-1, 1:-1]) + polynomial(b), "f4", False),
        (lambda b: np.sin(b)[1:-1, 2:] - np.sin(b)[1:-1, :-2] + polynomial(b), "f4", False),
        (lambda b: np.sin(b[1:-1, 1:-1]) + b[1:-1, 1:-1] % 2 + polynomial(b), "f4", True),
        (in_branch, "f4", True),
        (lambda b: b[1:-1, 1:-1] ** 3 + b[1:-1, 2:] ** 3, "f4", False),
        (lambda b: b[1:-1, 1:-1] % 7, "f4", True),
        (lambda b: b[1:-1, 1:-1] // b[1:-1, 2:], "i4", True),
        (lambda b: b[1:-1, 1:-1] ** 5, "i4", True),
    ],
)
def test_what_may_be_slower(
    function: Callable[..., Any], kind: str, unsure: bool, compiler: Compiler
) -> None:
    task = planned(function, kind=kind)
    assert may_be_slower(task, kernel_of(task)) is unsure


def test_an_answer_is_kept_for_a_function_and_a_size(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, measured = planned(again), []
    kernel = kernel_of(task)

    def seconds(*_: Any) -> tuple[float, float]:
        measured.append(1)
        return 2.0, 1.0

    monkeypatch.setattr(call_or_kernel, "_seconds", seconds)
    assert not is_slower(task, kernel, None)  # nothing could be kept
    assert [is_slower(task, kernel, tmp_path) for _ in range(3)] == [True] * 3
    assert len(measured) == 1
    monkeypatch.setattr(call_or_kernel, "_seconds", lambda *_: (1.0, 2.0))
    assert is_slower(task, kernel, tmp_path)
    other = planned(lambda block: np.arcsin(block)[1:-1, 2:] + np.arcsin(block)[1:-1, 1:-1])
    assert not is_slower(other, kernel_of(other), tmp_path)


def test_both_are_measured(compiler: Compiler) -> None:
    task = planned(again)
    assert all(0 < one < 60 for one in call_or_kernel._seconds(task, kernel_of(task)))


@pytest.mark.parametrize("slower", [False, True])
def test_rank_0_measures_for_all(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, slower: bool) -> None:
    """Last bits of functions are the same on all ranks. A mode that is given is not questioned."""
    asked = []

    def answer(*_: Any) -> bool:
        asked.append(1)
        return slower

    monkeypatch.setattr(call_or_kernel, "is_slower", answer)

    def decided(control: Any) -> list[bool]:
        world = open_world("cpu", control=control)
        modes = [("auto", 20_000), ("require", 1)]
        return [
            fused(world, planned(again, control.size), mode, "strict", steps)[0].kernel is not None
            for mode, steps in modes
        ]

    assert run_ranks(3, decided) == [[not slower, True]] * 3
    assert len(asked) == 1
