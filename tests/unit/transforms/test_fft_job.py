"""The job fft from files to files, on ranks as threads; what its check notices, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transform_cases as cases
from exchange_cases import mixed_up
from stream_cases import run_on

from meshrun.jobs.transforms.fft_job import fft
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.transforms.fourier import Local
from meshrun.runner.world.group import Group

Files = tuple[Path, Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return tmp_path / "in.npy", tmp_path / "out.npy"


def run_fft(files: Files, array: np.ndarray, ranks: int, verify: str = "full", **parameters: Any) -> Any:
    np.save(files[0], array)
    names = [name for name in ("host_memory", "overwrite_input") if name in parameters]
    options = {name: parameters.pop(name) for name in names}
    record = run_on(ranks, fft, *files, parameters=parameters, verify=verify, **options)
    assert (record["verify"] or {"mode": "off"})["mode"] == verify
    return record["result"], np.load(files[1])


@pytest.mark.parametrize(
    ("ranks", "decomposition", "keep_order"),
    [(1, "auto", True), (4, "slab", False), (4, "pencil", True), (4, "pencil", False)],
)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_three_axes(files: Files, name: str, keep_order: bool, decomposition: str, ranks: int) -> None:
    array = cases.random_array((6, 5, 8), "float64" if name == "rfft" else "complex128")
    result, got = run_fft(
        files, array, ranks, real="r" in name, inverse=name[0] == "i" or name[1] == "i" or "ir" in name,
        decomposition=decomposition, keep_order=keep_order,
    )  # fmt: skip
    wanted = cases.expected(name, array, (0, 1, 2), "backward")
    cases.close(got, wanted.transpose(result["order"]), wanted.dtype.name, single=False)
    assert result["exchanges"] == (0 if ranks == 1 else {"slab": 1, "auto": 1, "pencil": 2}[decomposition])
    assert not keep_order or result["order"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("shape", "axes", "ranks", "norm"),
    [
        ((12,), None, 1, "ortho"),
        ((7, 9), "0", 3, "forward"),
        ((7, 9), "-1", 3, "ortho"),
        ((1, 5), None, 3, "forward"),
        ((3, 4, 2, 5), "1,3", 2, "backward"),
        ((4, 0), "0", 2, "ortho"),
    ],
)
@pytest.mark.parametrize("name", ["fft", "irfft"])
def test_axes_and_norms(
    files: Files, name: str, shape: tuple[int, ...], axes: str | None, ranks: int, norm: str
) -> None:
    """Each shape with one norm."""
    array = cases.random_array(shape, "complex64")
    chosen = tuple(range(len(shape))) if axes is None else tuple(int(axis) for axis in axes.split(","))
    _, got = run_fft(files, array, ranks, axes=axes, norm=norm, inverse=name != "fft", real=name != "fft")
    wanted = cases.expected(name, array, chosen, norm)
    cases.close(got, wanted, "complex64" if name == "fft" else "float32", single=True)


@pytest.mark.parametrize("length", [1, 4, 7, 8, 9, 13])
def test_an_inverse_real_transform_of_any_length(files: Files, length: int) -> None:
    array = cases.random_array((3, 5), "complex128")
    _, got = run_fft(files, array, 2, real=True, inverse=True, length=length)
    cases.close(got, cases.expected("irfft", array, (0, 1), "backward", length), "float64", single=False)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_every_dtype(files: Files, dtype: str) -> None:
    array = cases.random_array((5, 6), dtype)
    single = dtype in ("float16", "float32", "complex64")
    _, got = run_fft(files, array, 2)
    wanted = cases.expected("fft", array, (0, 1), "backward")
    cases.close(got, wanted, "complex64" if single else "complex128", single)


@pytest.mark.parametrize(
    ("dtype", "inverse_real", "sentence"),
    [
        ("int16", False, "int16 converted to float64, result complex128"),
        ("bool", False, "bool converted to float64, result complex128"),
        ("float16", False, "float16 converted to float32, result complex64"),
        ("float32", False, "float32, result complex64"),
        (">c16", False, "complex128, result complex128"),
        ("int64", True, "int64 converted to float64, result float64"),
        ("complex64", True, "complex64, result float32"),
    ],
)
def test_the_record_and_the_plan_have_the_precision(
    files: Files, dtype: str, inverse_real: bool, sentence: str
) -> None:
    array = np.ones((4, 3), dtype)
    result, _ = run_fft(files, array, 1, inverse=inverse_real, real=inverse_real)
    assert result["precision"] == sentence
    planned = fft.plan(files[0], ranks=2, inverse=inverse_real, real=inverse_real)
    assert planned["facts"]["precision"] == sentence


def test_large_axes_are_checked_too(files: Files) -> None:
    array = cases.random_array((1500, 11), "float32")
    run_fft(files, array, 3, real=True, axes="1,0")
    run_fft(files, array, 3)


MUTANTS = {
    "conjugate": np.conj,
    "scale": lambda block: block * (1 + 1e-4),
    "shifted": lambda block: np.roll(block, 1, axis=1),
    "a wrong cell": lambda block: (
        block + np.complex64(30) * (np.arange(block.size).reshape(block.shape) == 7)
    ),
}


@pytest.mark.parametrize("mutant", [*MUTANTS, "swapped", "twice"])
@pytest.mark.parametrize("real", [False, True])
def test_the_check_notices(files: Files, mutant: str, real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a sample only: its first sum is over all cells."""
    if mutant in MUTANTS:
        whole = Local.__call__
        monkeypatch.setattr(Local, "__call__", lambda *arguments: MUTANTS[mutant](whole(*arguments)))
    else:
        exchange = Group.start_exchange

        def wrong(self: Group, sends: Any, receives: Any) -> Any:
            return exchange(self, mixed_up(sends, self.rank, mutant), receives)

        monkeypatch.setattr(Group, "start_exchange", wrong)
    array = cases.random_array((8, 10 if real else 6), "float32")  # with messages of one length
    with pytest.raises(RunError, match="verification failed: a"):
        run_fft(files, array, 3, "sample", real=real)
    assert not files[1].exists()


def test_so_many_ranks_would_do(files: Files) -> None:
    """As the error says: that many can, and one less cannot."""
    array, memory = np.ones((60, 7, 9)), 40 << 10
    with pytest.raises(UserError, match="does not fit the memory of 2 rank") as refused:
        run_fft(files, array, 2, "off", host_memory=memory)
    ranks = int(str(refused.value).rpartition("-n ")[2].partition(",")[0])
    _, got = run_fft(files, array, ranks, host_memory=memory)
    cases.close(got, cases.expected("fft", array, (0, 1, 2), "backward"), "complex128", single=False)
    with pytest.raises(UserError, match=f"does not fit the memory of {ranks - 1} rank"):
        run_fft(files, array, ranks - 1, "off", host_memory=memory)
    with pytest.raises(UserError, match="Try: more memory for each rank"):
        run_fft(files, array, 2, "off", host_memory=1)


REFUSED = [
    (1, (4, 4), "f8", {"axes": "2"}, r"there is no axis 2: got shape \(4, 4\), expected -2 to 1"),
    (1, (4, 4), "f8", {"axes": "x"}, "--axes does not parse: got 'x', expected numbers such as 0,2 or -1"),
    (1, (4, 4), "f8", {"axes": "1,-1"}, "each once: got 1, -1"),
    (1, (4, 4), "c8", {"real": True}, "takes real numbers: got complex64. Try: leave --real out"),
    (1, (4, 4), "f8", {"length": 4}, "a length applies to inverse real transforms only"),
    (1, (4, 0), "f8", {}, "axis 1 has no cells"),
    (1, (), "f8", {}, r"an array without axes cannot be transformed: got shape \(\)"),
    (1, (4, 4), "longdouble", {}, "dtype is not available: got float128"),
    (3, (4,), "f8", {}, r"cannot be split into 3 parts: got shape \(4,\)"),
    (3, (2, 2, 2), "f8", {"decomposition": "slab"}, "more ranks than planes: got 3 ranks .* Try: -n 2"),
    (
        1,
        (400, 400),
        "f8",
        {"host_memory": 1 << 20},
        r"does not fit the memory of 1 rank.* expected .* Try: -n 10",
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[-1][:20])
def test_what_cannot_be_transformed(files: Files, case: Any) -> None:
    ranks, shape, dtype, parameters, sentence = case
    with pytest.raises(UserError, match=sentence):
        run_fft(files, np.ones(shape, dtype), ranks, "off", **parameters)
    assert not files[1].exists()


def test_more_ranks_than_planes_is_a_warning(files: Files) -> None:
    array = cases.random_array((2, 3), "float32")
    np.save(files[0], array)
    record = run_on(5, fft, *files, verify="full")
    assert any("too few planes for 5 ranks" in warning for warning in record["warnings"])


def test_the_input_may_be_replaced(files: Files) -> None:
    array = cases.random_array((4, 6), "complex64")
    _, got = run_fft((files[0], files[0]), array, 2, "off", overwrite_input=True)
    cases.close(got, cases.expected("fft", array, (0, 1), "backward"), "complex64", single=True)


def test_a_file_whose_first_index_varies_fastest(files: Files) -> None:
    array = cases.random_array((4, 6), "complex64")
    _, got = run_fft(files, np.asfortranarray(array), 2)
    cases.close(got, cases.expected("fft", array, (0, 1), "backward"), "complex64", single=True)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e300])
def test_very_small_and_large_numbers_are_checked(files: Files, scale: float) -> None:
    """Their squares are no numbers of float64."""
    run_fft(files, cases.random_array((7, 6), "float64") * scale, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite(files: Files, value: float) -> None:
    """Every cell that one of them reaches is no number, as of numpy.fft; and there is nothing to check."""
    array = cases.random_array((4, 6), "float64")
    array[1, 2] = value
    _, got = run_fft(files, array, 2, "off", axes="1")
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(np.fft.fft(array)))
    files[1].unlink()
    with pytest.raises(UserError, match=r"cannot check this transform: .* not finite.*without --verify"):
        run_fft(files, array, 2)
    assert not files[1].exists()


def test_an_overflow_is_named(files: Files) -> None:
    array = np.full((4, 6), 2e38, np.float32)
    with pytest.raises(RunError, match="cells of the transform are not finite: got an overflow in complex64"):
        run_fft(files, array, 2)
