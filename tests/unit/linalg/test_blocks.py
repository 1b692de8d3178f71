"""meshrun.matmul: arrays in memory, whole or split by rows over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queued_device import QueuedBackend
from stream_cases import run_on

import meshrun
from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.jobs.linalg.matmul.plan import FIRST_SLAB, SLAB_PART, WIDE, slab_cuts
from meshrun.jobs.linalg.matmul.products import NumpyProducts
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import bounds
from meshrun.runner.world.world import open_world

Array = np.ndarray[Any, Any]


def made(*shape: int, dtype: str = "float64") -> Array:
    return (np.random.default_rng(len(shape) + shape[0]).standard_normal(shape) * 9).astype(dtype)


def on_ranks(ranks: int, a: Array, b: Array, *, queued: bool = False, **options: Any) -> list[Array]:
    """queued: on devices that compute while messages are exchanged, as GPUs do."""

    def rank(control: Control) -> Array:
        world = open_world("cpu", control=control)
        if queued:
            world.backend = QueuedBackend()

        def part(array: Array) -> Array:
            return array[slice(*bounds(len(array), ranks, world.rank))]

        return meshrun.matmul(part(a) if a.ndim == 2 else a, part(b), world=world, **options)

    return run_ranks(ranks, rank)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_blocks_of_rows(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.jobs.linalg.matmul.plan.DEEP_IN_PLACE", 2)  # several panels on each rank
    for shape in ((7, 5, 3), (1, 1, 1), (17, 64, 9), (3, 0, 4), (0, 3, 2), (601, 8, 5)):
        a, b = made(*shape[:2]), made(*shape[1:])
        np.testing.assert_allclose(np.concatenate(on_ranks(ranks, a, b)), a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "complex64", "complex128", "g"])
@pytest.mark.parametrize("known", [True, False], ids=["blas", "no blas"])
def test_dtypes_are_numpys(dtype: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels are added by NumPy's BLAS or, where that is unknown, by NumPy."""
    for name in ("DEEP", "DEEP_IN_PLACE"):
        monkeypatch.setattr(f"meshrun.jobs.linalg.matmul.plan.{name}", 3)
    if not known:
        monkeypatch.setattr("meshrun.jobs.linalg.matmul.products.adds_products", lambda dtype: False)
    a, b = made(9, 30, dtype=dtype), made(30, 4, dtype=dtype)
    found = np.concatenate(on_ranks(3, a, b))
    assert found.dtype == np.matmul(a, b).dtype
    expected = np.matmul(a.astype("complex128"), b.astype("complex128")) if a.dtype.kind != "i" else a @ b
    np.testing.assert_allclose(found, expected, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-3)


def narrow_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slabs, the last one narrower."""
    for name in ("WIDE", "FIRST_SLAB"):
        monkeypatch.setattr(f"meshrun.jobs.linalg.matmul.plan.{name}", 2)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_slabs_of_columns_are_gathered_on_devices(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow_slabs(monkeypatch)
    for shape in ((7, 5, 3), (1, 1, 1), (17, 64, 29), (3, 0, 4), (0, 3, 2), (4, 3, 0), (2, 9, 16)):
        a, b = made(*shape[:2]), made(*shape[1:])
        found = np.concatenate(on_ranks(ranks, a, b, queued=True))
        np.testing.assert_allclose(found, a @ b, rtol=1e-12, atol=1e-12)
    for dtype in ("float16", "int8", "complex64"):
        a, b = made(9, 30, dtype=dtype), made(30, 7, dtype=dtype)
        found = np.concatenate(on_ranks(ranks, a, b, queued=True))
        assert found.dtype == dtype
        wide = a @ b if dtype == "int8" else a.astype("c16") @ b.astype("c16")
        np.testing.assert_allclose(found, wide, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-3)


def test_sums_of_gathered_slabs_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element is one product over the whole length: sums are written once, and not read."""
    narrow_slabs(monkeypatch)
    found, multiply = [], NumpyProducts.multiply

    def counted(self: Any, a: Array, b: Array, out: Array, *, add: bool = False) -> None:
        found.append((a.shape[1], b.shape, add))
        multiply(self, a, b, out, add=add)

    monkeypatch.setattr(NumpyProducts, "multiply", counted)
    on_ranks(2, made(6, 500), made(500, 11), queued=True)
    assert sorted(found) == sorted(2 * [(500, (500, n), False) for n in (2, 2, 2, 2, 2, 1)])


def test_slabs_cover_the_columns() -> None:
    for columns in (0, 1, 511, 1024, 1025, 4095, 4096, 5000, 32768, 100_003):
        cuts = slab_cuts(columns)
        widths = [stop - start for start, stop in cuts]
        assert [cut[0] for cut in cuts] == [0, *(cut[1] for cut in cuts[:-1])]
        assert cuts[-1][1] == columns
        assert all(start % WIDE == 0 for start, _ in cuts)
        assert max(widths) <= max(columns / SLAB_PART + WIDE, FIRST_SLAB)
        assert len(cuts) < 13
    assert [stop - start for start, stop in slab_cuts(32768)] == [1024, 2048, *6 * [4096], 4096, 1024]


def test_ranks_of_which_one_has_an_unknown_blas_cut_the_same_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.jobs.linalg.matmul.plan.DEEP_IN_PLACE", 2)
    known = iter((True, False, True))
    monkeypatch.setattr("meshrun.jobs.linalg.matmul.blocks.adds_products", lambda dtype: next(known))
    a, b = made(9, 30), made(30, 4)
    np.testing.assert_allclose(np.concatenate(on_ranks(3, a, b)), a @ b, rtol=1e-12, atol=1e-12)


def test_vectors() -> None:
    a, b = made(6, 5), made(5)
    np.testing.assert_allclose(np.concatenate(on_ranks(2, a, b)), a @ b)
    for queued in (False, True):
        for found in on_ranks(2, b, made(5, 3), queued=queued):  # whole on every rank
            np.testing.assert_allclose(found, b @ made(5, 3))
    assert meshrun.matmul(b, b).shape == ()
    np.testing.assert_allclose(meshrun.matmul(b, b), b @ b)


def test_one_process_needs_no_world() -> None:
    a, b = made(6, 5, dtype="float32"), np.asfortranarray(made(5, 4, dtype="float32"))
    np.testing.assert_allclose(meshrun.matmul(a[::2], b), a[::2] @ b, rtol=1e-5)
    np.testing.assert_allclose(meshrun.matmul(a, b, precision="bfloat16"), a @ b, rtol=0.1, atol=20)


def test_blocks_that_do_not_fit_get_one_sentence() -> None:
    with pytest.raises(UserError, match=r"the shapes do not multiply: got A of shape \(4, 3\)"):
        on_ranks(2, made(4, 3), made(4, 3))
    with pytest.raises(UserError, match=r"blocks of A do not fit together: got .* on rank 0"):
        run_ranks(
            2, lambda control: meshrun.matmul(
                made(1 + 2 * control.rank, 2), made(1, 2), world=open_world("cpu", control=control)
            )
        )  # fmt: skip


def test_a_masked_array_and_an_unknown_precision_are_refused() -> None:
    a = np.ones((2, 2))
    for pair in ((np.ma.masked_equal(a, 1), a), (a, np.ma.masked_equal(a, 1))):
        with pytest.raises(UserError, match="does not see its mask: got 4 masked cells"):
            meshrun.matmul(*pair)
    with pytest.raises(UserError, match="unknown precision: got half, expected auto, float64, float32, "):
        meshrun.matmul(a, a, precision="half")  # type: ignore[arg-type]


def test_the_job_itself_takes_files() -> None:
    with pytest.raises(UserError, match=r"job matmul takes files.*matmul\.run"):
        matmul(made(2, 2), made(2, 2))


@pytest.mark.parametrize("algorithm", ["ring", "summa"])
def test_ranks_with_memory_of_their_own(tmp_path: Any, algorithm: str) -> None:
    """Devices on which work is queued, through whose memory pieces pass."""
    a, b = made(37, 20), made(20, 41)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for room in (1 << 20, 10_000) if algorithm == "ring" else (1 << 20,):
        run_on(
            3, matmul, files, [tmp_path / "c.npy"], devices=[QueuedBackend() for _ in range(3)],
            device_memory=room, verify="sample", parameters={"algorithm": algorithm},
        )  # fmt: skip
        np.testing.assert_allclose(np.load(tmp_path / "c.npy"), a @ b, rtol=1e-11, atol=1e-11)
