"""A padded block put together from what is read of a file is what padding the whole array gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.window import Window
from meshrun.runner.region import Region

PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}
CVAL = 7


@st.composite
def windows(draw: st.DrawFn) -> Window:
    shape = tuple(draw(st.integers(1, 9)) for _ in range(draw(st.integers(1, 3))))
    boundary = draw(st.sampled_from(BOUNDARIES))
    widest = [n - 1 if boundary == "mirror" and n > 1 else n for n in shape]
    widths = tuple((draw(st.integers(0, n)), draw(st.integers(0, n))) for n in widest)
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    stop = tuple(draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))
    return Window(Region(start, stop), shape, widths, boundary, CVAL)


def array_of(window: Window) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1 << 30, window.whole)


def expected(window: Window) -> np.ndarray:
    more = {"constant_values": CVAL} if window.boundary == "constant" else {}
    padded = np.pad(array_of(window), window.widths, PAD[window.boundary], **more)
    region = zip(window.region.start, window.region.stop, window.widths, strict=True)
    return padded[tuple(slice(a, b + low + high) for a, b, (low, high) in region)]


@settings(max_examples=3 * settings().max_examples)
@given(windows())
def test_what_is_read_makes_the_padded_block(window: Window) -> None:
    array = array_of(window)
    staged = np.zeros(window.staged, array.dtype)
    for part, place in window.reads():
        staged[place] = array[part.slices]
    assert staged.all(), "cells that nobody fills"
    block = staged if window.direct else np.zeros(window.shape, array.dtype)
    if not window.direct:
        window.assemble(staged, block)
    np.testing.assert_array_equal(block, expected(window))
    assert staged.size <= block.size


@settings(max_examples=3 * settings().max_examples)
@given(windows())
def test_what_is_read_into_the_block_itself_needs_only_its_edges(window: Window) -> None:
    if window.inside is None:
        return
    array = array_of(window)
    block = np.zeros(window.shape, array.dtype)
    ((part, _),) = window.reads()
    block[window.inside] = array[part.slices]
    window.fill(block)
    np.testing.assert_array_equal(block, expected(window))


def test_rows_in_the_middle_of_an_array_are_the_padded_block() -> None:
    window = Window(Region((4, 0), (8, 5)), (20, 5), ((1, 2), (0, 0)), "reflect")
    assert window.direct
    assert list(window.reads()) == [(Region((3, 0), (10, 5)), (slice(0, 7), slice(0, 5)))]


def test_a_boundary_that_wraps_round_is_read_from_the_other_end() -> None:
    window = Window(Region((0,), (4,)), (20,), ((2, 1),), "wrap")
    assert window.inside is None
    assert [part for part, _ in window.reads()] == [Region((0,), (5,)), Region((18,), (20,))]
