"""The probe itself: on which arrays a function is tried, and what is neither refused nor disturbed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.compiler.result_type import result_types
from meshrun.runner.compiler.samples import MOST_CELLS, samples
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.maps.split_probe import cuts, refusal
from meshrun.runner.plan.task import Task, plan_task

GREYS = np.arange(10.0)


def task_of(function: Any, *shapes: tuple[int, ...], dtype: str = "f8", **declared: Any) -> Task:
    job = meshrun.map_blocks(**{"halo": 0, **declared})(function)
    return plan_task(job, job.complete({}), [(shape, np.dtype(dtype)) for shape in shapes], 1)


def refused(function: Any, *shapes: tuple[int, ...], **declared: Any) -> str | None:
    error = refusal(task_of(function, *shapes, **declared), CpuBackend())
    return None if error is None else str(error)


def test_an_axis_is_cut_at_odd_places_into_parts_of_several_lengths() -> None:
    for length, unit in ((61, 1), (19, 1), (11, 1), (7, 1), (14, 2), (3, 1), (2, 1), (1, 1)):
        found = list(cuts(length, unit))
        assert [len(ends) - 1 for ends in found] == [2, 3][: min(length // unit, 3) - 1]
        for ends in found:
            assert ends == sorted({0, *ends, length})
            assert all(end % unit == 0 for end in ends)
        if length // unit > 4:
            assert found[0][1] // unit % 2 == 1
            assert found[0][1] // unit % 3
            assert len(set(np.diff(found[1]))) > 1


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int32", "float16", "float32", "float64", "complex64"]
)
def test_the_cells_of_parts_differ(dtype: str) -> None:
    """In number, largest value and order; negative ones are in the last corner."""
    cells = next(iter(samples(task_of(lambda u: u, (40, 30), dtype=dtype, halo=1)))).padded[0][1:-1, 1:-1]
    assert cells.dtype == dtype
    first, last = cells[:7].astype(complex).real, cells[7:].astype(complex).real
    assert first.sum() != last.sum()
    assert first.mean() < last.mean()
    if dtype != "bool":
        assert first.max() < last.max()
        assert len(np.unique(cells)) > 20
    if np.dtype(dtype).kind in "if":
        assert first.min() >= 0 > last.min()


@pytest.mark.parametrize(
    ("shape", "halo"),
    [
        ((10**9,), 0),
        ((10**6, 10**6), 0),
        ((10**4, 10**6), (1, 1)),
        ((100,) * 3 + (10**6,), 0),
        ((5, 7, 9, 8, 6), 1),
    ],
)
def test_arrays_are_small_however_large_the_runs_are(shape: tuple[int, ...], halo: Any) -> None:
    sample = next(iter(samples(task_of(lambda u: u, shape, halo=halo))))
    assert sample.task.partition[0].size <= MOST_CELLS


def table(u: Any) -> Any:
    new = GREYS[u]
    new[0] = 1
    return new


def positive(u: Any) -> Any:
    if (np.asarray(u) < 0).any() or (np.asarray(u) > 1).any():
        raise ValueError("not a picture")
    return u - u.mean()


def inverse(u: Any) -> Any:
    new = np.linalg.inv(u.reshape(-1, 2, 2)).reshape(u.shape)
    new[-1] = 0
    return new


def of_its_length(u: Any) -> Any:
    new = u * np.arange(1000.0)[None, :]
    new[0] = 0
    return new


def test_a_function_that_raises_on_some_values_is_tried_on_others() -> None:
    assert "`new[0] = 1`" in str(refused(table, (40, 30), dtype="u1"))
    assert "u.mean()" in str(refused(positive, (40, 30)))
    assert "`new[-1] = 0`" in str(refused(inverse, (40, 4)))
    assert "`new[0] = 0`" in str(refused(of_its_length, (50, 1000)))


def first_is_positive(u: Any) -> Any:
    return u + (1 if u[0, 0] > 0 else 0)


def last_is_negative(u: Any) -> Any:
    return u + 1 if u[-1, 3] < 0 else u


def highest(u: Any) -> Any:
    """The parts of an array that grows have theirs beyond their last cell."""
    row, column = np.unravel_index(np.argmax(u), u.shape)
    u[row, column] = 0
    return u[2:-2, 2:-2]


def middle_is_positive(u: Any) -> Any:
    return u * 2 if u[u.shape[0] // 2, 0] > 0 else u


@pytest.mark.parametrize(
    ("function", "halo"),
    [(first_is_positive, 0), (last_is_negative, 0), (middle_is_positive, 0), (highest, 2)],
)
@pytest.mark.parametrize("dtype", ["f8", "i4"])
def test_cells_of_either_sign_show_what_growing_ones_do_not(function: Any, halo: int, dtype: str) -> None:
    assert refused(function, (40, 30), dtype=dtype, halo=halo) is not None


def nan_anywhere(u: Any) -> Any:
    return np.zeros_like(u) if np.isnan(u).any() else u


def finite_everywhere(u: Any) -> Any:
    fine = np.isfinite(u).all()
    return u if fine else 0 * u


def sum_is_nan(u: Any) -> Any:
    return 0 * u if math.isnan(float(u.sum())) else u


def nothing_there(u: Any) -> Any:
    return np.ones_like(u) if not u.any() else u


def label_there(u: Any) -> Any:
    there = (u == LABEL).any()
    return u + 1 if there else u


def label_everywhere(u: Any) -> Any:
    return 0 * u if (u == 5).all() else u


def negative_one_there(u: Any) -> Any:
    return 0 * u if -1 in u else u


def zero_there(u: Any) -> Any:
    return u + (u == 0).any()


LABEL = 200


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
@pytest.mark.parametrize(
    "function",
    [
        nan_anywhere,
        finite_everywhere,
        sum_is_nan,
        nothing_there,
        label_there,
        label_everywhere,
        negative_one_there,
        zero_there,
    ],
)
def test_a_value_that_few_cells_have_shows_a_branch_on_it(function: Any, dtype: str) -> None:
    if dtype == "i4" and function in (nan_anywhere, finite_everywhere, sum_is_nan):
        assert refused(function, (50, 40), dtype=dtype) is None, "integers are finite"
    else:
        assert "depends on how the array is cut" in str(refused(function, (50, 40), dtype=dtype))


def any_label(u: Any) -> Any:
    return u.astype(np.uint8) + u.any()


def test_a_mask_that_is_empty_in_a_part_shows_a_branch_on_it() -> None:
    assert "numpy.any takes the cells of one block" in str(refused(any_label, (50, 40), dtype="bool"))


def replaced(u: Any, *, label: int = 5) -> Any:
    """It compares cell by cell, and its shortcut changes no number."""
    if not (u == label).any():
        return u
    return np.where(np.isnan(u) | (u == label), 0, u)


def test_comparisons_of_each_cell_are_not_refused() -> None:
    def plain(u: Any) -> Any:
        return np.where(np.isnan(u), 0, np.where(u == 5, 1, u))

    assert refused(plain, (50, 40)) is None
    assert refused(replaced, (50, 40), dtype="i4") is None


def test_a_function_that_raises_on_negative_cells_is_judged_by_others() -> None:
    def of_positive(u: Any) -> Any:
        if u.min() < 0:
            raise ValueError
        return np.sqrt(u)

    assert refused(of_positive, (40, 30)) is None


def test_a_function_that_always_raises_is_left_to_the_run() -> None:
    def broken(u: Any) -> Any:
        raise ValueError("not today")

    assert refused(broken, (40, 30)) is None
    with pytest.raises(ValueError, match="not today"):
        meshrun.map_blocks(broken)(np.zeros(4))


def test_nan_equals_nan_and_zeros_have_signs() -> None:
    assert refused(lambda u: np.where(u > 0, np.nan, u), (40,)) is None
    assert refused(lambda u: np.zeros_like(u) * np.copysign(1, u - u.mean()), (40,)) is not None


def test_a_difference_of_rounding_is_said_to_be_one() -> None:
    said = str(refused(lambda u: u + 1e-12 * u.mean(), (40,)))
    assert said.startswith(
        "job <lambda>: the last bits of its result depend on how the array is cut along axis 0"
    )
    assert "a difference of rounding: " in said


def test_other_numbers_at_each_call_are_said_to_be_that() -> None:
    generator = np.random.default_rng()
    said = str(refused(lambda u: u + generator.random(), (40,)))
    assert said.startswith("job <lambda> returns other numbers at each call")


def test_cells_that_are_kept_for_the_next_call_are_said_to_be_that() -> None:
    kept: dict[str, Any] = {}

    def before(u: Any) -> Any:
        last, kept["u"] = kept.get("u", u), u.copy()
        return u + last

    assert str(refused(before, (19, 17))).startswith("job before returns other numbers at each call")
    tables: dict[Any, Any] = {}

    def table(u: Any) -> Any:
        if u.shape not in tables:
            tables[u.shape] = np.full(u.shape[1], 2.0)
        return u * tables[u.shape]

    assert refused(table, (19, 17)) is None


def test_results_of_another_size_and_inputs_of_other_shapes_are_judged() -> None:
    def half(shape: Any, dtype: Any) -> Any:
        return (shape[0] // 2, *shape[1:]), dtype

    assert refused(lambda u: u[::2] + u[1::2], (40, 6), out=half) is None
    assert refused(lambda u: (u[::2] + u[1::2]).cumsum(axis=0), (40, 6), out=half) is not None
    both = [(40, 6, 3), (40, 6)]
    assert refused(lambda u, w: u * w[..., None], *both) is None
    assert refused(lambda u, w: (u * w[..., None], w - w.sum()), *both, outputs=2) is not None


def test_axes_that_a_run_does_not_cut_may_be_read_whole() -> None:
    assert refused(lambda u: np.sort(u, axis=1), (40, 5000)) is None
    assert refused(lambda u: np.fft.rfft(u, axis=1), (40, 5000)) is None
    assert refused(lambda u: u - u.mean(axis=(1, 2), keepdims=True), (40, 60, 3)) is None


def test_what_accepts_a_result_of_the_cut_is_not_called_before_a_run() -> None:
    calls = []

    def counted(u: Any) -> Any:
        calls.append(u.shape)
        return u + 1

    job = meshrun.map_blocks(halo=0, split_dependent=True, fuse="off")(counted)
    job(np.zeros(40))
    assert calls == [(40,)]


def test_what_a_function_prints_and_warns_of_is_hidden(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    def talks(u: Any) -> Any:
        print("here I am")
        return np.sqrt(u) + np.nanmean(np.full(3, np.nan))

    assert refused(talks, (40,)) is None
    assert capfd.readouterr().out == ""
    assert list(recwarn) == []


def copied_row(u: Any) -> Any:
    new = u * 2
    new[0, :] = new[1, :]
    return new


def test_result_types_are_those_of_several_rows() -> None:
    """On one row, an index beyond it would be the function's fault."""
    task = task_of(copied_row, (31, 8), split_dependent=True)
    assert result_types(task, CpuBackend()) == (((8,), np.dtype("f8")),)
    task = task_of(lambda u: np.fft.rfft(u, axis=1), (31, 5000))
    assert result_types(task, CpuBackend()) == (((2501,), np.dtype("c16")),)


def test_the_error_is_a_users(tmp_path: Any) -> None:
    np.save(tmp_path / "in.npy", np.zeros((31, 8)))
    job = meshrun.map_blocks(halo=0)(copied_row)
    for options in ({}, {"chunk_bytes": 512}, {"steps": 2}, {"steps": 2, "chunk_bytes": 512}):
        with pytest.raises(UserError, match=r"line \d+: `new\[0, :\] = new\[1, :\]` writes cells by their"):
            job.run(tmp_path / "in.npy", tmp_path / "out.npy", **options)
        assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]
    with pytest.raises(UserError, match="depends on how the array is cut"):
        job(np.zeros((31, 8)))
