"""The job matmul against NumPy: shapes, dtypes, formats, ranks as threads, and what bad input gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_cases import run_on

from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.launch.cli.main import main
from meshrun.runner.errors import UserError
from meshrun.runner.region import Region
from meshrun.runner.storage.formats.registry import open_source

Array = np.ndarray[Any, Any]
# rows, length, columns: primes, ones, zeros, fewer than ranks, more than a CPU multiplies at once
SHAPES = [
    (7, 5, 3),
    (1, 1, 1),
    (31, 17, 29),
    (3, 64, 2),
    (2, 3, 67),
    (0, 4, 5),
    (4, 0, 5),
    (4, 5, 0),
    (601, 3, 5),
]
DTYPES = ["float64", "float32", "float16", "complex64", "complex128", "int8", "uint16", "int32", "int64"]


def made(shape: tuple[int, ...], dtype: Any, seed: int = 1) -> Array:
    generator = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return generator.integers(0, 100, shape).astype(dtype)
    values = generator.standard_normal(shape)
    return (values + 1j * generator.standard_normal(shape) if np.dtype(dtype).kind == "c" else values).astype(
        dtype
    )


def read(path: Path) -> Array:
    source = open_source(path)
    values = np.empty(source.shape, source.dtype)
    source.read(Region((0,) * values.ndim, values.shape), values)
    return values


def product(
    folder: Path, a: Array, b: Array, ranks: int = 1, suffix: str = "npy", **options: Any
) -> tuple[Array, dict[str, Any]]:
    """The file that a run writes, and its record; every row is checked by the job itself, too."""
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    target = folder / f"c.{suffix}"
    options = {"verify": "sample", **options}
    record = run_on(ranks, matmul, [folder / "a.npy", folder / "b.npy"], [target], **options)
    return read(target), record


def same(got: Array, a: Array, b: Array) -> None:
    expected = np.matmul(a, b)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype.kind in "iu":
        np.testing.assert_array_equal(got, expected)
        return
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    exact, reach = (
        np.matmul(a.astype(wide), b.astype(wide)),
        np.matmul(abs(a.astype(wide)), abs(b.astype(wide))),
    )
    allowed = 4 * np.finfo(expected.dtype).eps * (abs(exact) + np.sqrt(a.shape[-1]) * reach)
    if expected.dtype == np.float16:  # sums in float32, rounded once
        allowed = np.finfo(np.float16).eps * (abs(exact) + 1e-3 * reach) + 1e-7
    assert (abs(got - exact) <= allowed).all()


@pytest.mark.parametrize("algorithm", ["ring", "summa"])
@pytest.mark.parametrize(
    "ranks", [1, 3, 8, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 4, 5, 6, 7))]
)
def test_shapes_on_ranks(tmp_path: Path, ranks: int, algorithm: str) -> None:
    for rows, length, columns in SHAPES[:: 2 if ranks == 8 else 1]:
        a, b = made((rows, length), "float64"), made((length, columns), "float64", 2)
        got, record = product(tmp_path, a, b, ranks, parameters={"algorithm": algorithm})
        same(got, a, b)
        assert record["result"]["algorithm"].startswith(algorithm)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ["ring", "summa"])
def test_dtypes(tmp_path: Path, dtype: str, algorithm: str) -> None:
    a, b = made((13, 40), dtype), made((40, 9), dtype, 2)
    got, _ = product(tmp_path, a, b, 4, parameters={"algorithm": algorithm})
    same(got, a, b)


@pytest.mark.parametrize(("left", "right"), [("int32", "float32"), ("float16", "float64"), ("uint8", "int8")])
def test_mixed_dtypes_are_promoted_as_numpy_does(tmp_path: Path, left: str, right: str) -> None:
    a, b = made((5, 11), left), made((11, 6), right, 2)
    same(product(tmp_path, a, b, 2)[0], a, b)


@pytest.mark.parametrize(("left", "right"), [((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)), ((0,), (0, 3))])
@pytest.mark.parametrize("algorithm", ["ring", "summa"])
def test_vectors(tmp_path: Path, left: tuple[int, ...], right: tuple[int, ...], algorithm: str) -> None:
    a, b = made(left, "float64"), made(right, "float64", 2)
    same(product(tmp_path, a, b, 3, parameters={"algorithm": algorithm})[0], a, b)


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
@pytest.mark.parametrize("algorithm", ["ring", "summa"])
def test_formats(tmp_path: Path, suffix: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "meshrun.jobs.linalg.matmul.plan.TILE", 4
    )  # several chunks of a Zarr store on each rank
    a, b = made((21, 10), "float32"), made((10, 19), "float32", 2)
    same(product(tmp_path, a, b, 4, suffix, parameters={"algorithm": algorithm})[0], a, b)
    c, d = read(tmp_path / f"c.{suffix}"), made((19, 5), "float32", 3)
    np.save(tmp_path / "d.npy", d)
    run_on(2, matmul, [tmp_path / f"c.{suffix}", tmp_path / "d.npy"], [tmp_path / "e.npy"])
    same(read(tmp_path / "e.npy"), c, d)


def test_fortran_order_and_one_input_twice(tmp_path: Path) -> None:
    a = np.asfortranarray(made((12, 12), "float64"))
    np.save(tmp_path / "a.npy", a)
    run_on(3, matmul, [tmp_path / "a.npy"] * 2, [tmp_path / "c.npy"], verify="full")
    same(read(tmp_path / "c.npy"), a, a)


def test_the_output_may_replace_an_input(tmp_path: Path) -> None:
    """An old file is replaced when the new one is complete."""
    a, b = made((6, 6), "float64"), made((6, 6), "float64", 2)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    run_on(2, matmul, files, files[:1], verify="sample", overwrite_input=True)
    same(read(tmp_path / "a.npy"), a, b)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("suffix", ["npy", "zarr"])
def test_little_memory_streams_pieces_and_turns(
    tmp_path: Path, ranks: int, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshrun.jobs.linalg.matmul.plan.TILE", 8)
    a, b = made((64, 50), "float64"), made((50, 70), "float64", 2)
    got, record = product(tmp_path, a, b, ranks, suffix, host_memory=30_000)
    same(got, a, b)
    assert "turns" in record["result"]["algorithm"]
    whole, _ = product(tmp_path, a, b, ranks, suffix)
    np.testing.assert_allclose(got, whole, atol=1e-13)


def test_raw_factors_have_a_shape_and_a_dtype_each(tmp_path: Path) -> None:
    a, b = made((13, 10), "float32"), made((10, 7), "float64", 2)
    a.tofile(tmp_path / "a.raw")
    b.tofile(tmp_path / "b.raw")
    files = [tmp_path / "a.raw", tmp_path / "b.raw"]
    matmul.run(files, tmp_path / "c.npy", input_shape=[(13, 10), (10, 7)], input_dtype=["float32", float])
    same(read(tmp_path / "c.npy"), a, b)
    words = ["matmul", *map(str, files), str(tmp_path / "d.npy"), "--shape", "13x10,10x7", "--dtype", "f4,f8"]
    assert main(["run", *words]) == 0
    np.testing.assert_array_equal(read(tmp_path / "d.npy"), read(tmp_path / "c.npy"))
    plan = matmul.plan(ranks=2, gpu="cpu", input_shape=[(13, 10), (10, 7)], input_dtype=["float32", float])
    assert plan["result"] == {"shape": [13, 7], "dtype": "float64"}
    with pytest.raises(UserError, match=r"another number of inputs: got 3, expected 2, or 1 for all"):
        matmul.run(files, tmp_path / "c.npy", input_shape=[(13, 10), (10, 7), (1,)], input_dtype="f4")


@pytest.mark.parametrize("given", [{"steps": 3}, {"steps": 3, "copies": "one"}, {"copies": "one"}])
def test_a_plan_of_a_product_takes_no_time_steps(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(given))}.* does not apply to job matmul"):
        matmul.plan(ranks=2, gpu="cpu", input_shape=(9, 9), input_dtype=float, **given)


def test_the_same_ranks_give_the_same_bits(tmp_path: Path) -> None:
    a, b = made((65, 300), "float32"), made((300, 33), "float32", 2)
    for algorithm in ("ring", "summa"):
        found = [product(tmp_path, a, b, 4, parameters={"algorithm": algorithm})[0] for _ in range(2)]
        np.testing.assert_array_equal(*found)


def test_values_that_are_not_finite_propagate(tmp_path: Path) -> None:
    a, b = made((9, 7), "float64"), made((7, 8), "float64", 2)
    a[2, 3], b[4, 5], b[1, 6] = np.inf, np.nan, -np.inf
    got, record = product(tmp_path, a, b, 3)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, a @ b, rtol=1e-12)
    assert "1 rows not finite" in record["verify"]["against"]


@pytest.mark.parametrize("word", ["float64", "float32", "float16", "bfloat16"])
def test_precision_rounds_the_factors_once(tmp_path: Path, word: str) -> None:
    import ml_dtypes

    a, b = made((20, 90), "float32"), made((90, 11), "float32", 2)
    got, record = product(tmp_path, a, b, 2, parameters={"precision": word})
    assert got.dtype == np.float32
    kind = np.dtype(ml_dtypes.bfloat16) if word == "bfloat16" else np.dtype(word)
    exact = a.astype(kind).astype(np.float64) @ b.astype(kind).astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
    assert record["result"]["precision"].startswith(f"factors {word}")


@pytest.mark.parametrize(
    ("left", "right", "options", "sentence"),
    [
        (((3, 4), "f4"), ((5, 6), "f4"), {}, r"do not multiply: got A of shape \(3, 4\) and B"),
        (((3, 4, 2), "f4"), ((2, 6), "f4"), {}, "arrays of one or two axes"),
        (((), "f4"), ((1,), "f4"), {}, "arrays of one or two axes"),
        (((3, 4), "?"), ((4, 6), "?"), {}, "matmul multiplies numbers: got bool"),
        (((3, 4), "f4"), ((4, 6), "f4"), {"precision": "tf32"}, "tf32 is a mode of GPUs"),
        (((3, 4), "i4"), ((4, 6), "i4"), {"precision": "float16"}, "real floating-point factors: got int32"),
        (((3, 4), "c8"), ((4, 6), "c8"), {"precision": "float32"}, "real floating-point factors: got comp"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(
    tmp_path: Path, left: Any, right: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        product(tmp_path, np.ones(*left), np.ones(*right), 2, parameters=options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_too_little_memory_says_how_many_ranks_would_do(tmp_path: Path) -> None:
    a, b = made((64, 500), "float64"), made((500, 70), "float64", 2)
    sentence = "does not fit the memory of 2 ranks by --algorithm summa.*Try: --algorithm ring"
    with pytest.raises(UserError, match=sentence):
        product(tmp_path, a, b, 2, host_memory=120_000, parameters={"algorithm": "summa"})
    with pytest.raises(UserError, match=r"does not fit the memory of 2 ranks: got .*Try: \d+ ranks"):
        product(tmp_path, a, b, 2, host_memory=10_000)


def test_a_product_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    """Factors without elements can have any lengths."""
    for name, shape in (("a", (1 << 60, 0)), ("b", (0, 1 << 60))):
        with open(tmp_path / f"{name}.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f4", "fortran_order": False, "shape": shape}
            )
    with pytest.raises(UserError, match=r"larger than a file can be: got float32 of shape \(1152"):
        run_on(2, matmul, [tmp_path / "a.npy", tmp_path / "b.npy"], [tmp_path / "c.npy"])


def test_an_image_as_a_factor_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.ones((4, 4), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="matmul reads its factors in parts"):
        run_on(2, matmul, [tmp_path / "a.png"] * 2, [tmp_path / "c.npy"])
