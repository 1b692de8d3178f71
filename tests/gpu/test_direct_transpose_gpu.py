"""Transposes that GPUs store into each other's memory, on two ranks or more: tests/gpu on mpirun -n N."""

from __future__ import annotations

import numpy as np
import pytest
from exchange_cases import part, same, whole

import meshrun
from meshrun.jobs.transforms.direct import DirectTranspose, open_direct
from meshrun.runner.world.world import World

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("shape", [(67, 129), (2, 40), (40, 2), (1000, 4104), (4096, 8192)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_it_is_the_transpose(several: World, shape: tuple[int, int], dtype: str) -> None:
    """Many times, each of other numbers: a store that comes too early or too late is seen."""
    direct = open_direct(several, shape, np.dtype(dtype), (1, 0))
    assert isinstance(direct, DirectTranspose), direct
    array = whole(shape, dtype)
    for turn in range(20):
        turned = np.roll(array, turn, axis=1)
        block = cupy.ascontiguousarray(cupy.asarray(part(turned, several, 0)))
        copy = direct(block, *shape).copy()  # issued at once, before other ranks may store again
        same(copy, part(turned.T, several, 0))
    direct.close()


@pytest.mark.parametrize("axes", [(1, 0), (0, 1)])
def test_messages_in_parts_give_the_same(
    several: World, axes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redistribution in parts, with packing, messages and transposes on two streams."""
    monkeypatch.setattr("meshrun.runner.plan.redistribution.LEAST", 1)
    for turn in range(20):
        array = np.roll(whole((513, 771), "float32"), turn, axis=1)
        block = cupy.asarray(part(array, several, 0))
        same(meshrun.transpose(block, several, axes=axes), part(array.transpose(axes), several, 0))
