"""Single steps whose pass stores the cells beyond the array: no launch fills them between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HostPeers, HostTables, compiled
from numpy_kernel import NumpyKernel
from step_runs import plain_loop, stepped

import meshrun
from meshrun.runner.arrays.halo.direct import DirectHalos
from meshrun.runner.arrays.halo.packed import PackedHalos
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.steps import halo_path
from meshrun.runner.steps.blocks import StepBlocks

WIDTHS = ((2, 2), (1, 2))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("halo"))


def function(a: Any, b: Any) -> Any:
    """Two fields that read each other, to the corners of their halos."""
    left = 3 * a[:-4, 1:-2] + 5 * b[4:, 3:] + 7 * a[2:-2, 3:]
    return left + b[:-4, :-3], a[2:-2, 1:-2] ^ b[4:, 1:-2]


def in_volume(a: Any, b: Any) -> Any:
    """Two fields of three axes that read each other along the first."""
    return a[2:-2, 1:-2, :] + b[:-4, 3:, :], a[2:-2, 1:-2, :] ^ b[4:, :-3, :]


def same_as_a_plain_loop(
    folder: Path,
    patch: pytest.MonkeyPatch,
    boundary: str,
    function: Any = function,
    shape: tuple[int, ...] = (17, 7),
    **options: Any,
) -> bool:
    def compile_for(
        device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
        shape: Any, row: int,
    ) -> Any:  # fmt: skip
        return NumpyKernel(program, widths, feeds, boundary, cval, 1, row=row), "NumPy"

    patch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    widths = (*WIDTHS, (0, 0))[: len(shape)]
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=2)(function)
    random = np.random.default_rng(3)
    arrays = [random.integers(0, 2**32, shape, np.uint32) for _ in range(2)]
    expected = plain_loop(function, arrays, 7, widths, boundary, [0, 1], 9)
    found, _ = stepped(folder, job, arrays, 7, fuse="require", **options)
    return all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("ranks", "halo"), [(1, "auto"), (2, "direct"), (3, "direct"), (2, "nccl"), (3, "nccl")]
)
def test_no_launch_fills_the_cells_beyond_the_array(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: Path,
    boundary: str,
    ranks: int,
    halo: Any,
    overlap: bool,
) -> None:
    monkeypatch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(library))
    monkeypatch.setattr(
        halo_path,
        "find_peers",
        lambda world, choice, ndim: "--halo nccl" if choice == "nccl" else HostPeers(world.control),
    )
    filled: list[str] = []
    for owner, name in (
        (StepBlocks, "_fill_outside"), (DirectHalos, "fill"), (DirectHalos, "fill_own"),
        (PackedHalos, "fill"), (PackedHalos, "fill_own"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, lambda *_, name=name: filled.append(name))
    # With one device, nothing else is done beside the passes.
    options: dict[str, Any] = {"devices": True} if ranks == 1 else {"halo": halo, "overlap": overlap}
    for every in (1, 2) if ranks > 1 else (1,):
        same = same_as_a_plain_loop(
            tmp_path, monkeypatch, boundary, ranks=ranks, steps_per_exchange=every, **options
        )
        # Rows that are computed first do not reach what a mirror shows of them.
        assert (same, filled) == (True, []) or (overlap and boundary == "mirror" and ranks > 1)


@pytest.mark.parametrize("options", [{}, {"ranks": 2, "steps_per_exchange": 3}])
def test_passes_are_bound_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A device then compiles their kernels, which is no part of the loop's time."""
    events: list[str] = []
    for name in ("_bound_calls", "_compute_by_kernel"):
        method = getattr(StepBlocks, name)

        def noted(blocks: Any, *arguments: Any, name: str = name, method: Any = method, **named: Any) -> Any:
            events.append(name)
            return method(blocks, *arguments, **named)

        monkeypatch.setattr(StepBlocks, name, noted)
    assert same_as_a_plain_loop(tmp_path, monkeypatch, "wrap", devices=True, **options)
    steps, ranks = 7, options.get("ranks", 1)
    bound = 2 * ranks * options.get("steps_per_exchange", 1)  # to both blocks of each field
    assert events.count("_compute_by_kernel") == steps * ranks
    first = events.index("_compute_by_kernel")
    assert events[:first].count("_bound_calls") == events.count("_bound_calls") == bound


def test_another_launch_fills_them_in_large_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[int] = []
    monkeypatch.setattr(StepBlocks, "_fill_outside", lambda blocks, targets: filled.append(1))
    moved = 17 * 7 * 4 * 4
    monkeypatch.setattr("meshrun.runner.steps.blocks.MOST_BYTES", moved)
    assert same_as_a_plain_loop(tmp_path, monkeypatch, "wrap", devices=True)
    assert filled == []
    monkeypatch.setattr("meshrun.runner.steps.blocks.MOST_BYTES", moved - 1)
    assert not same_as_a_plain_loop(tmp_path, monkeypatch, "wrap", devices=True)
    assert filled


def test_another_launch_fills_them_in_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs it takes less time than the branches in the pass."""
    filled: list[int] = []
    fill = StepBlocks._fill_outside

    def noted(blocks: Any, targets: Any) -> None:
        filled.append(1)
        fill(blocks, targets)

    monkeypatch.setattr(StepBlocks, "_fill_outside", noted)
    for boundary, launches in (("wrap", True), ("constant", False)):
        filled.clear()
        options: dict[str, Any] = {"devices": True, "function": in_volume, "shape": (17, 7, 6)}
        assert same_as_a_plain_loop(tmp_path, monkeypatch, boundary, **options)
        assert bool(filled) == launches


def test_another_launch_fills_them_where_a_pass_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last axis is split, so that a pass would have to store beyond the ends of rows."""
    filled: list[str] = []
    fill = StepBlocks._fill_outside

    def noted(blocks: Any, targets: Any) -> None:
        filled.append("outside")
        fill(blocks, targets)

    monkeypatch.setattr(StepBlocks, "_fill_outside", noted)
    options: dict[str, Any] = {"ranks": 2, "grid": "1x2", "steps_per_exchange": 2, "shape": (17, 16)}
    assert same_as_a_plain_loop(tmp_path, monkeypatch, "reflect", **options)
    assert filled
