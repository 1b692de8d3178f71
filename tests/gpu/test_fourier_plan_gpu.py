"""Plans whose GPUs copy into each other's memory, on two ranks or more: tests/gpu on mpirun -n N."""

from __future__ import annotations

from typing import Any

import pytest
import transform_cases as cases

import meshrun
from meshrun.jobs.transforms import direct_fourier, fourier_plan
from meshrun.runner.world.world import World

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    "shape",
    [
        (5, 7),
        (64, 48),
        (9, 10, 11),
        (32, 64, 16),
        (33, 8, 35),
        (6, 5, 4, 3),
        (128, 128, 256),
        (2048, 6, 5),
        (4096, 5, 3),
    ],
)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    ("norm", "part_bytes", "compact"),
    [("backward", 1, False), ("ortho", 1 << 30, False), ("forward", 1, True), ("backward", 1 << 30, True)],
)
def test_it_is_the_transform(
    several: World,
    shape: tuple[int, ...],
    dtype: str,
    norm: Any,
    part_bytes: int,
    compact: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In many parts, and in one; in rooms of the whole array, and of two blocks."""
    monkeypatch.setattr(fourier_plan, "is_compact", lambda *_: compact)
    monkeypatch.setattr(direct_fourier, "PART_BYTES", part_bytes)
    with meshrun.FourierPlan(several, shape, dtype, norm=norm, exchange="direct") as plan:
        assert (plan.exchange, plan.reason) == ("direct", "")
        cases.plan_goes_there_and_back(several, plan, shape=shape, dtype=dtype, norm=norm, turns=10)


def test_the_faster_exchange_is_kept(several: World) -> None:
    with meshrun.FourierPlan(several, (128, 128, 256)) as plan:
        assert set(plan.seconds) == {"direct", "messages"}
        assert plan.exchange == min(plan.seconds, key=lambda one: plan.seconds[one])
        cases.plan_goes_there_and_back(several, plan, shape=(128, 128, 256), dtype="complex64")
