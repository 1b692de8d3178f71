"""Products on MPI's ranks: mpiexec -n 3 python -m pytest --with-mpi tests/mpi/test_matmul.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import meshrun
from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.runner.plan.grid import bounds
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("algorithm", ["ring", "summa"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
@pytest.mark.parametrize("shape", [(31, 17, 29), (1, 7, 2), (4, 0, 3), (1200, 900, 700)])
def test_files(world: World, folder: Path, shape: tuple[int, int, int], dtype: str, algorithm: str) -> None:
    generator = np.random.default_rng(4)
    a = (generator.standard_normal(shape[:2]) * 5).astype(dtype)
    b = (generator.standard_normal(shape[1:]) * 5).astype(dtype)
    files = [folder / "a.npy", folder / "b.npy"]
    for file, array in zip(files, (a, b), strict=True):
        world.on_root(partial(np.save, file, array))
    target = folder / "c.npy"
    run(matmul, files, target, {"algorithm": algorithm}, Options(verify="sample"), world=world)
    wide = "int64" if dtype == "int32" else "float64"
    expected = a.astype(wide) @ b.astype(wide)
    allowed = {"int32": 0, "float16": 2e-3, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(np.load(target), expected, rtol=allowed, atol=allowed * 1000)


@pytest.mark.parametrize("shape", [(5, 3, 4), (700, 1500, 300)])
def test_blocks(world: World, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.jobs.linalg.matmul.plan.DEEP_IN_PLACE", 64)
    generator = np.random.default_rng(4)
    a, b = generator.standard_normal(shape[:2]), generator.standard_normal(shape[1:])
    rows = [slice(*bounds(len(array), world.size, world.rank)) for array in (a, b)]
    found = meshrun.matmul(a[rows[0]], b[rows[1]], world=world)
    np.testing.assert_allclose(found, (a @ b)[rows[0]], rtol=1e-11, atol=1e-11)
