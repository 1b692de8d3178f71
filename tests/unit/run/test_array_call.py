"""Direct calls of a decorated function: one trace for many calls, until something that it reads changes."""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy_kernel import NumpyKernel

import meshrun
from meshrun.runner.compiler import decide as fusing
from meshrun.runner.errors import UserError
from meshrun.runner.run import array_call, prepare

GAIN = 2.0
THING = SimpleNamespace(gain=2.0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[NumpyKernel]:
    """Kernels that were made, each after a trace."""
    kernels: list[NumpyKernel] = []

    def compile_for(
        device: Any,
        program: Any,
        widths: Any,
        arithmetic: str,
        feeds: Any,
        boundary: str,
        cval: float,
        *_: Any,
    ) -> Any:
        kernels.append(NumpyKernel(program, widths, feeds, boundary, cval, aligned=False))
        return kernels[-1], "NumPy"

    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 0)
    prepare.forget_tasks()
    return kernels


def helper(block: Any) -> Any:
    return block * GAIN


@meshrun.map_blocks
def slope(block: Any, *, rate: float = 1.0) -> Any:
    """Infer a halo, too."""
    return rate * helper(block[2:, 1:-1] - block[:-2, 2:])


@meshrun.map_blocks
def of_object(block: Any) -> Any:
    return block * THING.gain


ARRAY = np.random.default_rng(1).random((9, 8))


def expected(rate: float = 1.0, array: Any = ARRAY) -> Any:
    return slope.function(np.pad(array, 1, "symmetric"), rate=rate)


def test_a_function_is_traced_once_for_equal_calls(made: list[NumpyKernel]) -> None:
    for _ in range(3):
        np.testing.assert_array_equal(slope(ARRAY), expected())
    assert len(made) == 1
    np.testing.assert_array_equal(slope(2 * ARRAY), expected(array=2 * ARRAY))
    assert len(made) == 1
    np.testing.assert_array_equal(slope(ARRAY, rate=3.0), expected(3.0))
    assert len(made) == 2
    for other in (ARRAY[1:], ARRAY.astype(np.float32), np.asfortranarray(ARRAY[:, 1:])):
        np.testing.assert_array_equal(slope(other), expected(array=other))
    assert len(made) == 5


def test_a_change_of_what_it_reads_is_seen(made: list[NumpyKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    slope(ARRAY)
    monkeypatch.setitem(globals(), "GAIN", 3.0)
    np.testing.assert_array_equal(slope(ARRAY), expected())
    monkeypatch.setitem(globals(), "helper", lambda block: block + GAIN)
    np.testing.assert_array_equal(slope(ARRAY), expected())
    assert len(made) == 3
    monkeypatch.undo()


def test_what_cannot_be_known_is_traced_each_time(
    made: list[NumpyKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.testing.assert_array_equal(of_object(ARRAY), ARRAY * 2)
    monkeypatch.setattr(THING, "gain", 5.0)
    np.testing.assert_array_equal(of_object(ARRAY), ARRAY * 5)
    assert len(made) == 2


def test_steps_are_traced_once_and_apart_from_calls(made: list[NumpyKernel]) -> None:
    for _ in range(2):
        found = slope.iterate(ARRAY, steps=3)
        wanted = ARRAY
        for _ in range(3):
            wanted = expected(array=wanted)
        np.testing.assert_array_equal(found, wanted)
    assert len(made) == 1


def test_jobs_of_one_function_are_kept_apart(made: list[NumpyKernel]) -> None:
    jobs = [meshrun.map_blocks(boundary=name)(slope.function) for name in ("nearest", "wrap")]
    for job, mode in zip(jobs * 2, ("edge", "wrap") * 2, strict=True):
        chosen: Any = mode
        padded = np.pad(ARRAY, 1, chosen)
        np.testing.assert_array_equal(job(ARRAY), slope.function(padded))
    assert len(made) == 2


def test_few_tasks_are_kept(made: list[NumpyKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "MOST_PLANNED", 2)
    for rate in (1.0, 2.0, 3.0, 2.0, 1.0):
        slope(ARRAY, rate=rate)
    assert len(prepare._PLANNED) == 2
    assert len(made) == 4


@pytest.mark.parametrize("fuse", ["auto", "off"])
def test_an_array_in_another_byte_order_is_computed_in_the_machines(fuse: Any) -> None:
    @meshrun.map_blocks(fuse=fuse)
    def same(block: Any) -> Any:
        assert block.dtype.isnative
        return block

    array = np.arange(6.0).reshape(3, 2).astype(np.dtype(float).newbyteorder("S"))
    for found in (same(array), same.iterate(array, steps=2)):
        assert found.dtype == np.dtype(float)
        np.testing.assert_array_equal(found, array)


def test_masked_cells_are_refused() -> None:
    masked = np.ma.masked_less(np.arange(6.0).reshape(3, 2), 2)
    double = meshrun.map_blocks(lambda block: 2 * block, name="double")
    whole = meshrun.distribute(lambda array: 2 * array, name="whole")
    for job in (double, whole):
        for call in (
            job,
            lambda array, job=job: job.iterate(array, steps=2),
            lambda array, job=job: job.run(array, np.empty((3, 2))),
        ):
            with pytest.raises(meshrun.UserError, match=r"the input is a masked array.* 2 masked cells"):
                call(masked)
    filled = np.ma.masked_array(np.ones((3, 2)))
    result = np.empty((3, 2))
    double.run(filled, result)
    np.testing.assert_array_equal(result, double(filled))


class Matrix(np.ndarray):
    """As np.matrix has it."""

    def __mul__(self, other: Any) -> Any:
        return self @ other


def test_a_call_of_whole_arrays_computes_what_a_run_does_for_subclasses() -> None:
    """For a matrix, `*` is not of each cell; an array of the caller is changed in any case."""

    def squared(u: Any) -> Any:
        u[0] = 1
        return u * u

    job = meshrun.distribute(squared, feeds=("u",))
    for kind in (Matrix, np.ma.MaskedArray):
        given = np.arange(9.0).reshape(3, 3).view(kind)
        result = job(given)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, np.square([[1, 1, 1], [3, 4, 5], [6, 7, 8]]))
        np.testing.assert_array_equal(np.asarray(given)[0], [1, 1, 1])


@meshrun.distribute
def halved(u: Any) -> Any:
    if float(u.sum()) > 0:
        u = u / 2
    return u


def test_a_call_refuses_what_a_run_refuses() -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="converts a value of a reduction"):
            halved(ARRAY)


def test_a_function_of_whole_arrays_is_traced_once_for_all_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces, trace = [], array_call.with_inferred_halo

    def counted(*arguments: Any) -> Any:
        traces.append(arguments)
        return trace(*arguments)

    monkeypatch.setattr(array_call, "with_inferred_halo", counted)

    @meshrun.distribute
    def scaled(u: Any, *, rate: float = 1.0, centred: bool = False) -> Any:
        print("called")
        return rate * (u - 1 if centred else u)

    assert [scaled([1, 2], rate=rate).tolist() for rate in (1.0, 2.0, 3.0)] == [[1, 2], [2, 4], [3, 6]]
    assert capsys.readouterr().out == 3 * "called\n"
    assert len(traces) == 1
    scaled(np.array([1, 2]), centred=True)
    scaled(np.array([1.0, 2.0]))
    assert len(traces) == 3


@pytest.mark.parametrize(
    ("inputs", "outputs", "told"),
    [
        ([1.0, 2.0, 3.0], np.zeros(3), "has 1 input: got a list of 3"),
        ([np.ones(3), np.ones(3)], np.zeros(3), "has 1 input: got a list of 2"),
        (np.ones(3), [np.zeros(3), np.zeros(3)], "has 1 output: got a list of 2"),
    ],
)
def test_more_arrays_than_a_job_has(inputs: Any, outputs: Any, told: str) -> None:
    def same(block: Any) -> Any:
        return block

    with pytest.raises(UserError, match=told):
        meshrun.map_blocks(same).run(inputs, outputs)


@meshrun.map_blocks(halo=1, boundary="nearest")
def spread(u: Any, *, rate: float = 0.1) -> Any:
    return u[1:-1, 1:-1] + rate * (u[2:, 1:-1] - u[:-2, 1:-1])


@meshrun.distribute
def spread_whole(u: Any, *, rate: float = 0.1) -> Any:
    new = u.copy()
    new[1:-1] += rate * (u[2:] - u[:-2])
    return new


@pytest.mark.parametrize(("function", "most"), [(spread, 160), (spread_whole, 60)])
def test_a_call_of_a_known_function_makes_few_calls_of_python(function: Any, most: int) -> None:
    u = np.ones((32, 32), np.float32)
    function(u)
    function(u)
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        function(u)
    finally:
        sys.setprofile(None)
    assert calls < most
