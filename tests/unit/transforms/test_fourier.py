"""Fourier transforms of blocks against numpy.fft, on ranks as threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transform_cases as cases
from exchange_cases import mixed_up

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.transforms.fourier import Local, is_crowded
from meshrun.runner.transforms.plan import Transform
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World, open_world

NAMES = ("fft", "ifft", "rfft", "irfft")
SHAPES = [(7, 11), (8, 6), (1, 5), (5, 1, 3), (4, 6, 5), (3, 4, 2, 5)]
RANKS = [1, 2, 3, 5, 8]


def on_ranks(ranks: int, case: Callable[[World], Any]) -> list[Any]:
    return run_ranks(ranks, lambda comm: case(open_world("cpu", control=comm)))


def real_input(name: str) -> str:
    return "float64" if name == "rfft" else "complex128"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_axis_of_any_shape(name: str, shape: tuple[int, ...], ranks: int) -> None:
    if name == "irfft" and shape[-1] == 1:
        pytest.skip("one cell is no half of any")
    case = shape, tuple(range(len(shape)))
    on_ranks(ranks, lambda world: cases.transforms(world, name, *case, dtype=real_input(name)))


@pytest.mark.parametrize("axes", [(0,), (2,), (2, 0), (0, 1), (-1, -2)])
@pytest.mark.parametrize("name", NAMES)
def test_some_axes_in_any_order(name: str, axes: tuple[int, ...]) -> None:
    """Batches, and real transforms whose half is along any axis."""
    shape = (4, 5, 6)
    on_ranks(3, lambda world: cases.transforms(world, name, shape, axes, dtype=real_input(name)))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", NAMES)
def test_every_norm(name: str, norm: str) -> None:
    on_ranks(
        2, lambda world: cases.transforms(world, name, (6, 5), (0, 1), norm=norm, dtype=real_input(name))
    )


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        ({"axes": 0}, {"axes": 1}, r"the ranks' axes differ: got \[0\] on rank 0, \[1\] on rank 1"),
        ({}, {"axes": (0,)}, r"the ranks' axes differ: got None on rank 0, \[0\] on rank 1"),
        ({}, {"norm": "ortho"}, "the ranks' norm differ: got 'backward' on rank 0, 'ortho' on rank 1"),
        ({}, {"keep_order": False}, "the ranks' keep_order differ: got True on rank 0, False on rank 1"),
    ],
)
def test_ranks_that_ask_for_different_transforms_are_told(
    one: dict[str, Any], other: dict[str, Any], sentence: str
) -> None:
    """They would wait for each other, or compute parts of different results."""

    def case(world: World) -> str:
        with pytest.raises(UserError, match=sentence) as refused:
            meshrun.fft(np.zeros((2, 4)), world, **(other if world.rank else one))
        return str(refused.value)

    assert len({*on_ranks(2, case)}) == 1


def test_the_same_axes_may_be_written_differently() -> None:
    cases_of = [0, (0,), [0], np.array([0]), np.int64(0)]
    found = on_ranks(5, lambda world: meshrun.fft(np.ones((1, 3)), world, axes=cases_of[world.rank]))
    assert np.concatenate(found).tolist() == np.fft.fft(np.ones((5, 3)), axis=0).tolist()


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype(name: str, dtype: str) -> None:
    if name == "rfft" and "complex" in dtype:
        with pytest.raises(UserError, match=f"a real transform takes real numbers: got {dtype}"):
            meshrun.rfft(np.zeros((2, 2), dtype))
        return
    on_ranks(2, lambda world: cases.transforms(world, name, (5, 6), (0, 1), dtype=dtype))


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 20])
def test_an_inverse_real_transform_of_any_length(length: int) -> None:
    on_ranks(2, lambda world: cases.transforms(world, "irfft", (4, 6), (0, 1), length=length))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0, 3)])
def test_no_transforms_are_none(shape: tuple[int, ...], ranks: int) -> None:
    for name in NAMES:
        on_ranks(ranks, lambda world, n=name: cases.transforms(world, n, shape, (-1,), dtype=real_input(n)))


def test_without_numpys_cousin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in NAMES:
        on_ranks(2, lambda world, n=name: cases.transforms(world, n, (5, 6), (0, 1), dtype=real_input(n)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_whole_arrays_need_no_world(ranks: int) -> None:
    array = cases.random_array((5, 4), "float32")
    got = meshrun.fft(array)
    assert got.dtype == np.complex64
    np.testing.assert_allclose(got, np.fft.fft2(array), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(
        meshrun.irfft(meshrun.rfft(array, axes=(1, 0)), axes=(1, 0), length=5), array, atol=1e-4
    )
    line = cases.random_array((12,), "float64")
    np.testing.assert_allclose(meshrun.ifft(meshrun.fft(line)), line, atol=1e-12)


def test_it_is_linear_and_its_inverse_undoes_it() -> None:
    one, other = (cases.random_array((9, 10, 7), "complex128", seed) for seed in (1, 2))

    def case(world: World) -> None:
        a, b = (cases.part(array, world, 0) for array in (one, other))
        both = meshrun.fft(2 * a - 3j * b, world)
        np.testing.assert_allclose(both, 2 * meshrun.fft(a, world) - 3j * meshrun.fft(b, world), atol=1e-9)
        transformed, split = meshrun.fft(a, world, keep_order=False)
        back = meshrun.ifft(transformed, world, split=split)
        back = world.redistribute(back, split, 0)
        np.testing.assert_allclose(back, a, atol=1e-12)

    on_ranks(4, case)


@pytest.mark.parametrize("mutant", ["swapped", "conjugate", "scale", "twice"])
def test_a_wrong_transform_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant in ("swapped", "twice"):
        exchange = World.start_exchange

        def wrong(self: Group, sends: Any, receives: Any) -> Any:
            return exchange(self, mixed_up(sends, self.rank, mutant), receives)

        monkeypatch.setattr(World, "start_exchange", wrong)
    else:
        from meshrun.runner.transforms.fourier import Local

        whole = Local.__call__
        change = {"conjugate": np.conj, "scale": lambda block: block * (1 + 1e-9)}[mutant]
        monkeypatch.setattr(Local, "__call__", lambda *arguments: change(whole(*arguments)))
    with pytest.raises(AssertionError):
        on_ranks(3, lambda world: cases.transforms(world, "fft", (6, 6), (0, 1)))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: meshrun.fft(np.zeros((3, 4)), axes=2),
            r"there is no axis 2: got shape \(3, 4\), expected -2 to 1",
        ),
        (lambda: meshrun.fft(np.zeros((3, 4)), axes=(0, -2)), "must be given, each once: got 0, -2"),
        (lambda: meshrun.fft(np.zeros((3, 4)), axes=()), "must be given, each once: got none"),
        (lambda: meshrun.fft(np.zeros((3, 4)), split=-3), "there is no axis -3 to be split.* -2 to 1"),
        (lambda: meshrun.fft(np.float64(3)), "an array without axes cannot be transformed"),
        (lambda: meshrun.fft(np.zeros((3, 0))), r"axis 1 has no cells to transform"),
        (
            lambda: meshrun.irfft(np.zeros((3, 1))),
            "would have no cells: got 1 along axis 1.* Try: length=1",
        ),
        (lambda: meshrun.irfft(np.zeros((3, 4)), length=-2), "would have no cells: got a length of -2"),
        (lambda: meshrun.fft(np.zeros(3), norm="both"), "unknown norm: got both, expected backward, ortho"),
        (lambda: meshrun.fft(np.zeros(3, "longdouble")), "of this dtype is not available: got float128"),
        (lambda: meshrun.fft(np.zeros(3, "M8[s]")), "of this dtype is not available"),
        (lambda: meshrun.fft(np.ma.masked_equal([1.0, 2.0], 1)), "does not see its mask: got 1 masked cell"),
        (lambda: meshrun.transpose(np.ma.masked_equal([[1, 2]], 1)), "does not see its mask: got 1 masked"),
    ],
)
def test_what_cannot_be_transformed(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()


def test_an_axis_may_be_numpys_integer_and_an_array_a_list() -> None:
    array = [[1, 2, 3], [4, 5, 7]]
    for axis in (np.int64(0), np.int8(-1)):
        np.testing.assert_allclose(meshrun.fft(array, axes=axis), np.fft.fft(array, axis=axis))
    np.testing.assert_array_equal(meshrun.transpose(array), np.transpose(array))


@pytest.mark.parametrize("cells", [1, 2, 7, 30, 64])
@pytest.mark.parametrize("name", NAMES)
def test_an_array_of_one_axis(name: str, cells: int) -> None:
    if name == "irfft" and cells == 1:
        pytest.skip("one cell is no half of any")
    for ranks in (1, 2, 3, 5):
        for norm in ("backward", "ortho"):
            on_ranks(
                ranks,
                lambda world, norm=norm: cases.transforms(
                    world, name, (cells,), (0,), norm=norm, dtype=real_input(name)
                ),
            )


@pytest.mark.parametrize("shape", [(30,), (9, 8), (3, 8, 6), (5, 4, 3, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_on_any_number_of_ranks(name: str, shape: tuple[int, ...]) -> None:
    for split in range(len(shape)):
        array = cases.random_array(shape, real_input(name))

        def case(world: World, array: Any = array, split: int = split) -> Any:
            return getattr(meshrun, name)(cases.part(array, world, split), world, split=split)

        found = {np.concatenate(on_ranks(ranks, case), axis=split).tobytes() for ranks in (1, 2, 3, 5)}
        assert len(found) == 1


@pytest.mark.parametrize(
    ("shape", "axis", "crowded"),
    [((512, 512), 0, True), ((512, 512), 1, False), ((512, 513), 0, False), ((64, 512), 0, False),
     ((2, 256, 512), 1, True), ((256, 4, 128), 0, True), ((200, 3, 5, 1024), 0, True)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32"])
def test_cells_a_power_of_two_apart_are_transformed_in_parts_with_the_same_bits(
    shape: tuple[int, ...], axis: int, crowded: bool, dtype: str
) -> None:
    fourier = pytest.importorskip("scipy.fft")
    noise = np.random.default_rng(0)
    block = noise.random(shape) + (1j * noise.random(shape) if dtype.startswith("c") else 0)
    block = block.astype(dtype)
    assert is_crowded(block, axis) == (crowded and block.dtype.kind == "c")
    stage, before = Transform((axis,), shape), block.copy()
    for inverse, name in ((False, "fft"), (True, "ifft")):
        local = Local(np, inverse, "", "backward", 0)
        want = getattr(fourier, name)(before, axis=axis)
        found = local(block, stage)
        assert np.array_equal(found, want)
        assert found.flags.c_contiguous
        assert np.array_equal(block, before)
        if block.dtype.kind != "c":
            continue
        # In place, also in a part of a larger array.
        larger = np.zeros((shape[0], shape[1] + 512, *shape[2:]), dtype)
        part = larger[:, 512:]
        part[...] = before
        assert local(part, stage, overwrite=True) is part
        assert np.array_equal(part, want)
        assert not larger[:, :512].any()
