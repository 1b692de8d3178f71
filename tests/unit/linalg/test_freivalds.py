"""Freivalds' check finds what a wrong product would have, and lets rounding pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_cases import run_on

from meshrun.jobs.linalg.matmul.files import Factor
from meshrun.jobs.linalg.matmul.freivalds import check_product
from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.jobs.linalg.matmul.products import NumpyProducts
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.storage.formats.registry import open_source
from meshrun.runner.world.world import open_world

Array = np.ndarray[Any, Any]


def check(
    folder: Path, a: Array, b: Array, c: Array, ranks: int = 2, precision: str = "auto"
) -> dict[str, Any]:
    for name, array in (("a", a), ("b", b), ("c", c)):
        np.save(folder / f"{name}.npy", array)

    def rank(control: Control) -> dict[str, Any]:
        sources = [open_source(folder / f"{name}.npy") for name in "abc"]
        return check_product(
            open_world("cpu", control=control), sources[:2], sources[2], "sample", precision=precision
        )

    return run_ranks(ranks, rank)[0]


def factors(dtype: str, shape: tuple[int, int, int] = (60, 400, 50)) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(5)
    rows, length, columns = shape
    if np.dtype(dtype).kind in "iu":
        a = generator.integers(-100, 100, (rows, length)).astype(dtype)
        b = generator.integers(-100, 100, (length, columns)).astype(dtype)
        return a, b, a @ b
    a = generator.standard_normal((rows, length)).astype(dtype)
    b = generator.standard_normal((length, columns)).astype(dtype)
    wide = a @ b if dtype != "float16" else (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    return a, b, wide


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64", "int8", "int64"])
def test_rounding_passes_and_one_wrong_element_does_not(tmp_path: Path, dtype: str) -> None:
    a, b, c = factors(dtype)
    found = check(tmp_path, a, b, c)
    assert found["rows"] == 60
    assert "of at most 2^-20" in found["against"]
    # Elements are about 20.
    c[37, 11] += {"float16": 2.0, "float32": 0.1, "complex64": 0.5, "float64": 1e-9}.get(dtype, 1)
    with pytest.raises(RunError, match="row 37 of the product is wrong"):
        check(tmp_path, a, b, c)


@pytest.mark.parametrize("scale", [1e-6, 1e150])
def test_columns_of_another_magnitude_are_checked_as_well(tmp_path: Path, scale: float) -> None:
    a, b, _ = factors("float64")
    b[:, 3] *= scale
    c = a @ b
    check(tmp_path, a, b, c)
    c[20, 3] *= 1 + 1e-9
    with pytest.raises(RunError, match="row 20 "):
        check(tmp_path, a, b, c)


def test_nan_in_the_place_of_a_number_is_wrong(tmp_path: Path) -> None:
    a, b, c = factors("float32")
    c[5, 6] = np.nan
    with pytest.raises(RunError, match="row 5, column 6 of the product is wrong: got an overflow"):
        check(tmp_path, a, b, c)


def test_overflow_of_a_result_passes(tmp_path: Path) -> None:
    a = np.full((3, 8), 300, np.float16)
    with np.errstate(over="ignore"):
        c = (a.astype(np.float32) @ a.astype(np.float32).T).astype(np.float16)
    assert np.isinf(c).all()
    assert "3 rows not finite" in check(tmp_path, a, np.ascontiguousarray(a.T), c)["against"]


@pytest.mark.parametrize("place", ["every row of A", "every column of B"])
def test_a_product_of_which_nothing_can_be_compared_is_not_verified(tmp_path: Path, place: str) -> None:
    a, b = np.ones((6, 4)), np.ones((4, 5))
    if place == "every row of A":
        a[:, 1] = np.nan
    else:
        b[2] = np.inf
    with pytest.raises(UserError, match=r"--verify cannot check this product: .* Try: run without --verify"):
        check(tmp_path, a, b, np.zeros((6, 5)))


def test_the_columns_that_are_not_compared_are_counted(tmp_path: Path) -> None:
    a, b = np.ones((6, 4)), np.ones((4, 5))
    b[1, 3] = np.inf
    assert check(tmp_path, a, b, a @ b)["against"].endswith("(Freivalds), 1 columns not finite")


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3, 0), (2, 0, 3)])
def test_products_without_elements_or_without_sums_are_right(
    tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    rows, length, columns = shape
    a, b = np.ones((rows, length)), np.ones((length, columns))
    assert check(tmp_path, a, b, a @ b)["against"].endswith("(Freivalds)")


@pytest.mark.parametrize("size", [1e-9, 1e6])
def test_factors_that_a_shorter_precision_does_not_hold_pass(tmp_path: Path, size: float) -> None:
    """In float16, some become 0 or a multiple of the smallest number, others infinite."""
    a, b, _ = factors("float32")
    a[:20] *= np.float32(size)
    with np.errstate(all="ignore"):
        c = a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)
    assert check(tmp_path, a, b, c, precision="float16")["rows"] >= 40


def test_numbers_below_the_normal_ones_pass(tmp_path: Path) -> None:
    a, b, _ = factors("float32")
    a *= np.float32(1e-25)
    b *= np.float32(1e-18)
    check(tmp_path, a, b, a @ b)


@pytest.mark.parametrize("seed", range(5))
def test_products_of_positive_numbers_pass(tmp_path: Path, seed: int) -> None:
    """Their rounding errors are the largest relative to the result."""
    generator = np.random.default_rng(seed)
    a, b = generator.random((40, 3000), np.float32), generator.random((3000, 30), np.float32)
    check(tmp_path, a, b, a @ b)


# What a broken algorithm does: each must be found by --verify.


def swapped_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Factor.read

    def read(self: Factor, rows: Any, columns: Any, out: Array) -> None:
        of_b = self.source.path.name == "b.npy"
        right(self, {(0, 4): (4, 8), (4, 8): (0, 4)}.get(rows, rows) if of_b else rows, columns, out)

    monkeypatch.setattr(Factor, "read", read)


def a_message_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right, sent = ThreadComm.exchange, {}

    def exchange(self: ThreadComm, sends: Any, receives: Any) -> Any:
        again = [(peer, sent.get((self.rank, array.shape), array)) for peer, array in sends]
        sent.update({(self.rank, array.shape): array.copy() for _, array in sends})
        return right(self, again, receives)

    monkeypatch.setattr(ThreadComm, "exchange", exchange)


def sums_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    right = NumpyProducts.multiply
    monkeypatch.setattr(
        NumpyProducts, "multiply", lambda self, a, b, out, add=False: right(self, a, b, out, add=False)
    )


def factors_swapped_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    right = NumpyProducts.multiply

    def multiply(self: NumpyProducts, a: Array, b: Array, out: Array, *, add: bool = False) -> None:
        right(self, a[::-1], b, out, add=add)

    monkeypatch.setattr(NumpyProducts, "multiply", multiply)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (swapped_blocks, "summa", 4),
    (a_message_twice, "ring", 3),
    (a_message_twice, "summa", 4),
    (sums_replaced, "summa", 2),
    (factors_swapped_in_a_row, "ring", 2),
]


@pytest.mark.parametrize(
    ("mutant", "algorithm", "ranks"), MUTANTS, ids=lambda value: getattr(value, "__name__", value)
)
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_broken_algorithms_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Any, algorithm: str, ranks: int, dtype: str
) -> None:
    for name in ("DEEP", "DEEP_IN_PLACE"):
        monkeypatch.setattr(f"meshrun.jobs.linalg.matmul.plan.{name}", 4)  # several panels on each rank
    a, b, _ = factors(dtype, (24, 32, 24))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]

    def multiply() -> None:
        run_on(
            ranks, matmul, files, [tmp_path / "c.npy"], verify="sample", parameters={"algorithm": algorithm}
        )

    multiply()
    (tmp_path / "c.npy").unlink()
    mutant(monkeypatch)
    with pytest.raises(RunError, match="of the product is wrong"):
        multiply()
    assert not (tmp_path / "c.npy").exists()
