"""NumPy's operations on distributed arrays: programs of them have NumPy's bits on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshrun
from meshrun.runner.arrays.operations.parts import Taken, items_of
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError

RANKS = (1, 2, 3)
REFUSED = (ValueError, IndexError, TypeError)
DTYPES = ("f8", "f4", "i4", "c16", "bool")
EXACT = (np.max, np.min, np.argmax, np.any, np.all, np.count_nonzero)


def on_ranks(ranks: int, body: Callable[[Any], Any]) -> list[Any]:
    """Return what `body` returns for the world of each of some ranks, which are threads."""

    def rank(control: Any) -> Any:
        with meshrun.open_world("cpu", control=control) as world:
            return body(world)

    return run_ranks(ranks, rank)


def values(shape: Any, dtype: str, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    cells = generator.normal(0, 4, shape)
    return (cells + 1j * generator.normal(0, 4, shape) if dtype[0] == "c" else cells).astype(dtype)


@dataclass(frozen=True)
class Which:
    """One of the arrays of a program, by a number that is taken modulo their number."""

    n: int


def bounds() -> st.SearchStrategy[slice]:
    ends = st.none() | st.integers(-5, 5)
    return st.builds(slice, ends, ends, st.sampled_from((None, 1, 2, -1, -2)))


def indices() -> st.SearchStrategy[Any]:
    one = bounds() | st.integers(-3, 3) | st.none() | st.just(Ellipsis)
    return one | st.tuples(one, one) | st.tuples(bounds(), bounds())


def operations() -> st.SearchStrategy[Any]:
    place, index = st.builds(Which, st.integers(0, 7)), indices()
    binary = st.sampled_from((np.add, np.subtract, np.multiply, np.maximum, np.less, np.arctan2))
    unary = st.sampled_from((np.abs, np.negative, np.sqrt, np.isnan, np.sign))
    axis = st.sampled_from((None, 0, 1, -1))
    return st.one_of(
        st.tuples(st.just("binary"), binary, place, index, place, index),
        st.tuples(st.just("assign"), place, index, place, index),
        st.tuples(st.just("in place"), binary, place, index, place, index),
        st.tuples(st.just("number"), place, index, st.sampled_from((2, 0.5, True, -1))),
        st.tuples(st.just("unary"), unary, place, index),
        st.tuples(st.just("where"), place, place, st.sampled_from((0, 1.5))),
        st.tuples(st.just("write where"), place, place),
        st.tuples(st.just("mask"), place, place, st.sampled_from((1, 2.5))),
        st.tuples(st.sampled_from(("pick", "write picked")), place, place),
        st.tuples(st.just("reduce"), st.sampled_from(EXACT), place, axis, st.booleans()),
        st.tuples(st.just("roll"), place, st.integers(-4, 9), axis),
        st.tuples(st.just("join"), place, place, axis),
        st.tuples(st.just("turn"), place),
        st.tuples(st.just("copy"), place, st.sampled_from(DTYPES)),
        st.tuples(st.just("reshape"), place),
    )


def _in_place(ufunc: Any, a: Any, i: Any, b: Any, j: Any) -> None:
    view = a[i]
    if np.ndim(view):
        ufunc(view, b[j], out=view)


def _scaled(a: Any, i: Any, number: Any) -> None:
    a[i] *= number


def _scaled_where(a: Any, b: Any, number: Any) -> None:
    a[b > 0] *= number


# Each operation on arrays; it returns a new array, or changes one and returns None.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "binary": lambda ufunc, a, i, b, j: ufunc(a[i], b[j]),
    "assign": lambda a, i, b, j: a.__setitem__(i, b[j]),
    "in place": _in_place,
    "number": _scaled,
    "unary": lambda ufunc, a, i: ufunc(a[i]),
    "where": lambda a, b, number: np.where(a > number, b, number),
    "write where": lambda a, b: np.add(a, b, out=a, where=b > 0),
    "mask": _scaled_where,
    "pick": lambda a, b: a[b > 0],
    "write picked": lambda a, b: a.__setitem__(b > 0, a[b > 0] + 1),
    "reduce": lambda function, a, axis, keepdims: a * function(a, axis=axis, keepdims=keepdims),
    "roll": np.roll,
    "join": lambda a, b, axis: np.concatenate([a, b], axis),
    "turn": lambda a: a.T,
    "copy": lambda a, dtype: a.astype(dtype),
    "reshape": lambda a: np.reshape(a, -1).copy(),
}


def take(arrays: list[Any], operation: Any) -> None:
    """Do one operation, on NumPy's arrays or on distributed ones."""
    name, *given = operation
    result = OPERATIONS[name](
        *(arrays[one.n % len(arrays)] if isinstance(one, Which) else one for one in given)
    )
    if result is not None and name != "write where":
        arrays.append(result)


def run_program(arrays: list[Any], program: Any) -> list[int]:
    """Do all operations; return which of them raised an error."""
    raised = []
    with np.errstate(all="ignore"):
        for number, operation in enumerate(program):
            before = len(arrays)
            try:
                take(arrays, operation)
            except REFUSED:
                raised.append(number)
            if len(arrays) > before and not np.ndim(arrays[-1]):
                arrays.pop()  # a number
    return raised


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", RANKS)
@settings(max_examples=max(settings.default.max_examples // 2, 1), deadline=None)
@given(
    shape=st.tuples(st.integers(1, 7), st.integers(1, 5)),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    program=st.lists(operations(), min_size=1, max_size=8),
)
def test_programs_have_the_bits_of_numpy(ranks: int, shape: Any, dtypes: Any, program: Any) -> None:
    given = [values(shape, dtype, seed) for seed, dtype in enumerate(dtypes)]
    expected = [one.copy() for one in given]
    refused = run_program(expected, program)

    def body(world: Any) -> None:
        arrays = [world.array(one) for one in given]
        assert run_program(arrays, program) == refused
        assert len(arrays) == len(expected)
        for found, one in zip(arrays, expected, strict=True):
            assert (found.shape, found.dtype) == (one.shape, one.dtype)
            np.testing.assert_array_equal(found.gather(), one)

    on_ranks(ranks, body)


@given(index=indices(), shape=st.tuples(st.integers(0, 4), st.integers(1, 3)))
def test_an_index_takes_what_numpy_takes(index: Any, shape: Any) -> None:
    try:
        expected: Any = np.empty(shape)[index].shape
    except IndexError as failure:
        with pytest.raises(IndexError, match=str(failure)[:20].replace("(", "\\(")):
            items_of(index, shape)
        return
    items = items_of(index, shape)
    assert tuple(1 if one is None else one.length for one in items if not isinstance(one, int)) == expected


@given(
    st.integers(0, 9),
    st.integers(-3, 3).filter(bool),
    st.integers(0, 5),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_ranks_share_out_the_elements_of_a_slice(first: int, step: int, length: int, a: int, b: int) -> None:
    cut, (start, stop) = Taken(first, step, length), sorted((a, b))
    positions = [first + step * n for n in range(length)]
    low, high = cut.elements(start, stop)
    own = [n for n, place in enumerate(positions) if start <= place < stop]
    assert list(range(low, high)) == own
    assert list(range(start, stop))[cut.within(start, stop)] == [positions[n] for n in own]


@pytest.mark.parametrize("ranks", RANKS)
def test_sums_have_the_same_bits_on_any_number_of_ranks(ranks: int) -> None:
    """And agree with NumPy's within rounding."""
    functions = (np.sum, np.mean, np.std, np.var, np.prod)
    cases = [
        (function, dtype, axis, keepdims)
        for function in functions
        for dtype in ("f8", "f4", "i2", "c16")
        for axis in (None, 0, 1, (0, 1))
        for keepdims in (False, True)
        if function is not np.prod or dtype != "c16"
    ]

    def body(world: Any) -> list[bytes]:
        found = []
        for function, dtype, axis, keepdims in cases:
            whole = values((11, 6), dtype) / (7 if dtype[0] in "fc" else 1)
            whole = whole.astype(dtype)
            result = function(world.array(whole), axis=axis, keepdims=keepdims)
            cells = result.gather() if hasattr(result, "gather") else np.asarray(result)
            expected = function(whole, axis=axis, keepdims=keepdims)
            assert (cells.shape, cells.dtype) == (np.shape(expected), expected.dtype)
            np.testing.assert_allclose(cells, expected, rtol=1e-4 if dtype == "f4" else 1e-10)
            found.append(cells.tobytes())
        return found

    every = on_ranks(ranks, body)
    assert all(one == every[0] for one in every)
    assert every[0] == on_ranks(1, body)[0]


def test_other_functions_of_numpy() -> None:
    a, b = values((9, 8), "f8"), values((9, 8), "f8", 1)
    line = np.linspace(0, 1, 9)[:, None]
    functions: list[Callable[..., Any]] = [
        lambda u, v: np.gradient(u)[1],
        lambda u, v: np.pad(u, ((1, 2), (0, 1)), mode="edge"),
        lambda u, v: np.tril(u, 1),
        lambda u, v: np.diff(u, axis=0),
        lambda u, v: np.clip(u, -1, v),
        lambda u, v: np.stack([u, v], 2),
        lambda u, v: np.vstack([u, v[0]]),
        lambda u, v: np.moveaxis(u[None] + v, 0, 2),
        lambda u, v: np.round(u, 1),
        lambda u, v: np.full_like(u, 3) + np.zeros_like(v) + np.ones_like(u),
        lambda u, v: np.squeeze(u[None])[..., None],
        lambda u, v: np.flip(u, 1) - np.swapaxes(v.T, 0, 1),
        lambda u, v: np.divmod(u, 0.7)[1],
        lambda u, v: u.reshape(12, 6)[::-1],
        lambda u, v: u + line,
        lambda u, v: np.broadcast_to(u[0], (9, 8)) + v,
        lambda u, v: np.outer(u[:, 0], v[1]),
        lambda u, v: np.average(u, axis=0, weights=v[:, 0] ** 2),
        lambda u, v: (u + 1j * v).conj().imag,
        lambda u, v: np.isclose(u, v, atol=2),
        lambda u, v: np.nan_to_num(np.where(v > 0, np.nan, u), nan=3.0),
        lambda u, v: u.clip(0, 1).mean(axis=1, keepdims=True) + u,
    ]

    def body(world: Any) -> None:
        u, v = world.array(a), world.array(b)
        for function in functions:
            found, expected = function(u, v), np.asarray(function(a, b))
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(found.gather(), expected, rtol=1e-13)
        assert (np.array_equal(u, a), np.allclose(u, a + 1e-9), np.array_equal(u, v)) == (True, True, False)
        assert (len(u), u.ndim, u.size, u.nbytes) == (9, 2, 72, 576)
        np.testing.assert_allclose(np.linalg.norm(u), np.linalg.norm(a))
        np.testing.assert_allclose(np.vdot(u, v), np.vdot(a, b))
        assert (u[3, -1], u.max(), float(np.min(u))) == (a[3, -1], a.max(), a.min())

    for ranks in RANKS:
        on_ranks(ranks, body)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_reductions_on_ranks_without_cells(axis: int | None) -> None:
    whole = values((2, 3), "f8")

    def body(world: Any) -> None:
        for function in (*EXACT, np.sum, np.std):
            found = function(world.array(whole), axis=axis)
            cells = found.gather() if hasattr(found, "gather") else found
            np.testing.assert_allclose(cells, function(whole, axis=axis), rtol=1e-12)

    on_ranks(5, body)


def test_tools_of_whole_arrays_take_arrays_and_views() -> None:
    whole = values(23, "f8")

    def body(world: Any) -> None:
        u = world.array(whole)
        np.testing.assert_array_equal(np.sort(u).gather(), np.sort(whole))
        np.testing.assert_array_equal(np.sort(u[::-2]).gather(), np.sort(whole[::-2]))
        np.testing.assert_allclose(np.cumsum(u[3:]).gather(), np.cumsum(whole[3:]))

    on_ranks(3, body)


def refused(kind: type[Exception], said: str, function: Callable[[Any], Any], ranks: int = 2) -> None:
    """Check that a call fails on every rank, with words in the message."""

    def body(world: Any) -> None:
        with pytest.raises(kind, match=said):
            function(world)

    on_ranks(ranks, body)


def test_what_numpy_refuses_is_refused_in_its_words() -> None:
    refused(ValueError, r"could not be broadcast together with shapes \(3,\) \(4,\)",
            lambda world: world.zeros(3) + world.ones(4))  # fmt: skip
    refused(ValueError, r"could not broadcast input array from shape \(2,\) into shape \(3,\)",
            lambda world: world.zeros(4).__setitem__(slice(1, None), world.ones(2)))  # fmt: skip
    refused(IndexError, "index 4 is out of bounds for axis 0 with size 4", lambda world: world.zeros(4)[4])
    refused(IndexError, "too many indices", lambda world: world.zeros(4)[1, 2])
    refused(ValueError, "truth value of an array", lambda world: bool(world.zeros(4) > 0))
    refused(ValueError, "zero-size array", lambda world: np.max(world.zeros(0)))
    refused(TypeError, "0-dimensional", lambda world: float(world.zeros(4)))


def test_nothing_is_gathered_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.arrays.operations.split_array.MOST_GATHERED", 100)
    refused(
        UserError, r"np.asarray gathers .* 800 bytes.*world.save", lambda world: np.asarray(world.zeros(100))
    )
    refused(UserError, "tolist gathers", lambda world: world.zeros(100).tolist())
    refused(UserError, "not iterated.*whole arrays", lambda world: list(world.zeros(4)))
    large = np.zeros(10_000)
    refused(UserError, r"large array of NumPy's.*world.array", lambda world: world.zeros(10_000) + large)

    def body(world: Any) -> None:
        import pickle

        u = world.arange(10)
        np.testing.assert_array_equal(np.asarray(u), np.arange(10))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(u)), np.arange(10))
        assert (u.tolist(), world.zeros(100).gather().shape) == (list(range(10)), (100,))
        assert len(repr(world.zeros(100))) < 120

    on_ranks(2, body)


def test_a_copy_is_not_written_in_place_of_a_view() -> None:
    """NumPy's reshape is a view: what is written to it would change the array."""
    refused(
        UserError,
        "copy of a distributed array.*slices",
        lambda world: world.zeros((4, 2)).reshape(8).__setitem__(0, 1),
    )

    def body(world: Any) -> None:
        u = world.arange(8.0)
        line, own = u.reshape(4, 2), u.reshape(4, 2).copy()
        assert float(line.sum()) == 28
        u[0] = 1
        for read in (
            np.sum,
            np.max,
            np.sqrt,
            np.asarray,
            np.ravel,
            lambda one: one[0],
            lambda one: one.T + 1,
        ):
            with pytest.raises(UserError, match="after the array that it is a copy of was written"):
                read(line)
        assert float(np.sum(own)) == 28
        assert float(np.sum(u.reshape(4, 2))) == 29

    on_ranks(2, body)
    refused(UserError, "no such index", lambda world: world.zeros((4, 2))[[0, 1], [1, 0]])


def test_arrays_of_two_worlds_do_not_mix() -> None:
    def body(world: Any) -> None:
        other = meshrun.open_world("cpu", control=world.control.split(0))
        with other, pytest.raises(UserError, match="two worlds"):
            world.zeros(4) + other.zeros(4)

    on_ranks(2, body)


@meshrun.distribute(outputs=("v",), series=("total", "mean", "length", "product"))
def totals(u: Any, v: Any) -> Any:
    return v, np.sum(u), np.mean(u), np.sqrt(np.sum(u * u)), np.sum(u * v)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sums_are_rounded_once_as_in_functions(dtype: str) -> None:
    """Their exact value is Python's; views, and ranks without cells, change no bits."""
    a, b = values((9, 7), dtype) * 1e6, values((9, 7), dtype, 1)
    a[0, :2] = 1e12, -1e12
    total, product = (np.dtype(dtype).type(math.fsum(one.ravel().tolist())) for one in (a, a * b))

    def body(world: Any) -> None:
        u, v = world.array(a), world.array(b, split=1)
        _, *of_function = totals(u, v)
        alike = [np.sum(u), np.mean(u), np.linalg.norm(u), np.vdot(u, v)]
        assert [one.tobytes() for one in alike] == [one.tobytes() for one in of_function]
        same = world.array(b)
        for found in (np.sum(u), u.sum(), np.sum(u[::-1, ::-1]), u[::-1].sum(), np.add.reduce(u.T, None)):
            assert found.tobytes() == total.tobytes()
        for found in (u.dot(same), u[::-1].dot(same[::-1]), np.sum(u * v), np.vdot(v, u)):
            assert found.tobytes() == product.tobytes()
        assert np.sum(u[3:3]) == 0
        assert np.sum(u[2:4], keepdims=True).gather().tolist() == [[float(np.sum(u[2:4]))]]
        half = np.sum((u * 1e-12).astype("f2"))
        assert half.dtype == np.float16

    for ranks in (*RANKS, 12):
        on_ranks(ranks, body)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_sums_of_complex_numbers_are_those_of_functions(dtype: str) -> None:
    a, b = values((9, 7), dtype) * 1e6, values((9, 7), dtype, 1)

    def body(world: Any) -> None:
        u, v = world.array(a), world.array(b)
        _, total, *_ = totals(u, v)
        for found in (np.sum(u), np.sum(u[::-1]), u.sum()):
            assert found.tobytes() == total.tobytes()
            assert found.real == np.dtype(dtype).type(math.fsum(a.real.ravel().tolist())).real

    for ranks in RANKS:
        on_ranks(ranks, body)


@pytest.mark.parametrize("index", [True, (1, True), slice(1.0, 2), slice(np.float64(1), 2), 1.0])
def test_an_index_is_not_taken_for_an_equal_one(index: Any) -> None:
    """True == 1 == 1.0, and only one of them takes a row: also if that one was used before."""

    def body(world: Any) -> None:
        u = world.zeros((4, 4))
        assert u[1].shape == u[np.int64(1)].shape == (4,)
        assert u[1:2].shape == u[np.int8(1) : np.int64(2)].shape == (1, 4)
        assert float(u[1, 1]) == 0
        with pytest.raises((UserError, TypeError)):
            u[index]

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("operation", "agreements", "exchanges"),
    [
        (lambda u, v: u + v, 0, 0),
        (lambda u, v: np.sqrt(u * 2), 0, 0),
        (lambda u, v: u.__iadd__(v), 0, 0),
        (lambda u, v: u.__setitem__((slice(1, -1), slice(1, -1)), v[1:-1, 2:]), 0, 0),
        (lambda u, v: u.__setitem__((slice(1, -1), slice(1, -1)), v[2:, 1:-1]), 1, 1),
        (lambda u, v: np.roll(u, 3, 1), 0, 0),
        (lambda u, v: np.roll(u, 1, 0), 1, 1),
        (lambda u, v: np.max(u), 1, 1),
        (lambda u, v: np.sum(u), 1, 0),  # and a sum of whole numbers on the host
    ],
)
def test_operations_exchange_once_at_most(operation: Any, agreements: int, exchanges: int) -> None:
    def body(world: Any) -> list[int]:
        u, v, counts = world.zeros((8, 8)), world.ones((8, 8)), [0, 0]

        def counted(number: int, method: Any) -> Any:
            def call(*arguments: Any) -> Any:
                counts[number] += 1
                return method(*arguments)

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.operations, "agree", counted(0, world.operations.agree))
            patch.setattr(world.arrays, "exchange", counted(1, world.arrays.exchange))
            operation(u, v)
        return counts

    assert on_ranks(2, body) == [[agreements, exchanges]] * 2


DIFFERENT: list[Callable[[Any, Any], Any]] = [
    lambda world, u: np.sum(u) if world.rank else np.max(u),
    lambda world, u: np.sum(u + 1 if world.rank else u),
    lambda world, u: np.sum(u + world.rank),
    lambda world, u: u.gather() if world.rank == 1 else None,
    lambda world, u: u[world.rank],
    lambda world, u: u.__setitem__(slice(world.rank, None), 0) or np.sum(u),
    lambda world, u: u.__setitem__(u > 0, world.rank),
    lambda world, u: world.zeros(4) if world.rank else world.zeros(4) + np.sum(u),
    lambda world, u: world.save("/nowhere/u.npy", u) if world.rank else np.roll(u, 1),
]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("number", range(len(DIFFERENT)))
def test_ranks_that_call_different_operations_are_named(number: int, ranks: int) -> None:
    """By the operation and the line of both; no rank waits for another."""

    def rank(control: Any) -> str:
        with (
            pytest.raises(UserError) as failure,
            meshrun.open_world("cpu", control=control) as world,
        ):
            DIFFERENT[number](world, world.arange(12.0))
        return str(failure.value)

    (said,) = set(run_ranks(ranks, rank))
    for word in ("different operations", "on rank 0", "on rank 1", "test_operations.py, line"):
        assert word in said
