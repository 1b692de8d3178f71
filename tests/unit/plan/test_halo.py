"""Halos against the definitions of others: np.pad for the padded cells, scipy.ndimage for the filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import ndimage

from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.grid import Partition, bounds
from meshrun.runner.plan.halo import (
    Widths,
    check_widths,
    normalize,
    sends,
    source_index,
    transfers,
)

PAD_MODE: dict[str, Any] = {
    "reflect": "symmetric",
    "mirror": "reflect",
    "nearest": "edge",
    "constant": "constant",
    "wrap": "wrap",
}
CVAL = -7
UNWRITTEN = -99


def pad(array: np.ndarray, widths: Widths, boundary: str) -> np.ndarray:
    options = {"constant_values": CVAL} if boundary == "constant" else {}
    return np.pad(array, widths, PAD_MODE[boundary], **options)


def padded_block(
    array: np.ndarray, partition: Partition, rank: int, widths: Widths, boundary: str
) -> tuple[np.ndarray, np.ndarray]:
    """A rank's block and halo from `transfers` and the senders' cells alone; how often each is written."""
    own = array[partition[rank].slices]
    shape = tuple(low + n + high for n, (low, high) in zip(own.shape, widths, strict=True))
    core = tuple(slice(low, low + n) for n, (low, _) in zip(own.shape, widths, strict=True))
    block, written = np.full(shape, UNWRITTEN), np.zeros(shape, int)
    block[core] = own
    written[core] = 1
    for transfer in transfers(partition, rank, widths, boundary):
        assert transfer.receiver == rank
        sent = array[partition[transfer.sender].slices][transfer.source]
        wanted = block[transfer.target].shape
        assert all(a in (1, b) for a, b in zip(sent.shape, wanted, strict=True))
        assert sent.size, "an empty message is not sent"
        block[transfer.target] = np.flip(sent, transfer.flip)
        written[transfer.target] += 1
    return block, written


@st.composite
def cases(draw: st.DrawFn) -> tuple[Partition, Widths]:
    ndim = draw(st.integers(1, 3))
    lengths = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 11, 13])
    units = tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(ndim))
    shape = tuple(draw(lengths) * unit for unit in units)
    room, grid = 8, []
    for _ in range(ndim):
        grid.append(draw(st.integers(1, room)))
        room //= grid[-1]
    widths = tuple((draw(st.integers(0, n)), draw(st.integers(0, n))) for n in shape)
    return Partition(shape, tuple(draw(st.permutations(grid))), units), widths


@given(cases(), st.sampled_from(BOUNDARIES))
@settings(max_examples=3 * settings().max_examples)
@example((Partition((1,), (1,)), ((1, 1),)), "mirror")
@example((Partition((1, 1), (2, 2)), ((1, 0), (0, 1))), "mirror")
@example((Partition((5,), (3,)), ((5, 5),)), "reflect")
@example((Partition((13, 7), (4, 2)), ((13, 1), (2, 7))), "wrap")
def test_every_padded_block_is_a_window_of_the_padded_array(
    case: tuple[Partition, Widths], boundary: str
) -> None:
    partition, widths = case
    array = np.arange(math.prod(partition.shape)).reshape(partition.shape)
    whole = pad(array, widths, boundary)
    inside = pad(np.ones_like(array), widths, "constant") == 1
    for rank, region in enumerate(partition):
        block, written = padded_block(array, partition, rank, widths, boundary)
        if region.size == 0:
            assert not list(transfers(partition, rank, widths, boundary))
            continue
        window = tuple(
            slice(a, b + low + high)
            for a, b, (low, high) in zip(region.start, region.stop, widths, strict=True)
        )
        must_be_written = inside[window] if boundary == "constant" else np.ones(block.shape, bool)
        assert (written == must_be_written).all(), "each cell once; the constant's cells never"
        np.testing.assert_array_equal(np.where(must_be_written, block, CVAL), whole[window])


@given(cases(), st.sampled_from(BOUNDARIES), st.integers(0, 2**32 - 1))
def test_filtering_blocks_is_filtering_the_array(
    case: tuple[Partition, Widths], boundary: str, seed: int
) -> None:
    partition, widths = case
    rng = np.random.default_rng(seed)
    # Small integers in float64: every sum is exact, so that the order of adding does not matter.
    array = rng.integers(-9, 10, partition.shape).astype(np.float64)
    kernel = rng.integers(-9, 10, [low + 1 + high for low, high in widths]).astype(np.float64)
    # SciPy centres a kernel of n cells at n // 2 + origin; ours begins `low` cells before its centre.
    origin = [low - n // 2 for (low, _), n in zip(widths, kernel.shape, strict=True)]
    expected = ndimage.correlate(array, kernel, mode=boundary, cval=CVAL, origin=origin)
    for rank, region in enumerate(partition):
        if region.size:
            block, written = padded_block(array, partition, rank, widths, boundary)
            block = np.where(written == 1, block, CVAL)
            views = np.lib.stride_tricks.sliding_window_view(block, kernel.shape)
            result = np.tensordot(views, kernel, kernel.ndim)
            np.testing.assert_array_equal(result, expected[region.slices])


@given(cases(), st.sampled_from(BOUNDARIES))
def test_senders_and_receivers_agree_on_what_travels_and_in_which_order(
    case: tuple[Partition, Widths], boundary: str
) -> None:
    partition, widths = case
    ranks = range(partition.size)
    needed = {rank: list(transfers(partition, rank, widths, boundary)) for rank in ranks}
    offered = {rank: list(sends(partition, rank, widths, boundary)) for rank in ranks}
    for sender in ranks:
        assert all(t.sender == sender and t.receiver != sender for t in offered[sender])
        for receiver in ranks:
            if receiver != sender:
                assert [t for t in offered[sender] if t.receiver == receiver] == [
                    t for t in needed[receiver] if t.sender == sender
                ]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
def test_an_empty_array_moves_nothing(shape: tuple[int, ...], boundary: str) -> None:
    partition = Partition(shape, (2,) * len(shape))
    widths = normalize(1, len(shape))
    check_widths(widths, shape)
    for rank in range(partition.size):
        assert not list(transfers(partition, rank, widths, boundary))
        assert not list(sends(partition, rank, widths, boundary))


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_scalar_has_no_halo(boundary: str) -> None:
    assert not list(transfers(Partition((), ()), 0, (), boundary))


def test_few_large_messages() -> None:
    """Nine blocks, one cell of halo: a message for each of the eight neighbours, and no more."""
    partition = Partition((30, 30), (3, 3))
    messages = list(transfers(partition, 4, ((1, 1), (1, 1)), "wrap"))
    assert sorted(message.sender for message in messages) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert sum(block_cells(message.source) for message in messages) == 4 * 10 + 4


@pytest.mark.parametrize(("boundary", "rows"), [("reflect", slice(0, 4)), ("mirror", slice(1, 5))])
def test_a_mirror_image_travels_as_one_message(boundary: str, rows: slice) -> None:
    """Four rows beyond the edge, in reverse order: one box and the axis to flip."""
    partition = Partition((8, 6), (1, 1))
    (message,) = transfers(partition, 0, ((4, 0), (0, 0)), boundary)
    assert (message.target[0], message.source[0], message.flip) == (slice(0, 4), rows, (0,))


def test_a_repeated_cell_travels_once() -> None:
    """However far beyond the edge, 'nearest' copies one row: the message holds it once."""
    partition = Partition((4, 6), (4, 1))
    (message,) = (m for m in transfers(partition, 1, ((4, 0), (0, 0)), "nearest") if m.sender == 0)
    assert message.source == (slice(0, 1), slice(0, 6))


def block_cells(slices: tuple[slice, ...]) -> int:
    return math.prod(cut.stop - cut.start for cut in slices)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("length", range(1, 8))
def test_source_index_is_np_pad_at_any_distance(length: int, boundary: str) -> None:
    reach = 3 * length
    expected = pad(np.arange(length), ((reach, reach),), boundary)
    found = [source_index(position, length, boundary) for position in range(-reach, length + reach)]
    assert [CVAL if cell is None else cell for cell in found] == expected.tolist()


@pytest.mark.parametrize(
    ("halo", "ndim", "widths"),
    [
        (0, 2, ((0, 0), (0, 0))),
        (2, 3, ((2, 2), (2, 2), (2, 2))),
        ((1, 2), 2, ((1, 1), (2, 2))),
        (((1, 0), 3), 3, ((1, 0), (3, 3), (0, 0))),
        ([[0, 4]], 1, ((0, 4),)),
        ((), 2, ((0, 0), (0, 0))),
        (5, 0, ()),
        (np.int64(2), 1, ((2, 2),)),
        ((np.int64(1), (np.int64(0), 3)), 2, ((1, 1), (0, 3))),
    ],
)
def test_normalize(halo: Any, ndim: int, widths: Widths) -> None:
    assert normalize(halo, ndim) == widths


@pytest.mark.parametrize(("halo", "ndim"), [((1, 1, 1), 2), (-1, 2), (((0, -2),), 1)])
def test_normalize_refuses(halo: Any, ndim: int) -> None:
    with pytest.raises(UserError):
        normalize(halo, ndim)


@pytest.mark.parametrize("halo", [1.5, "x", "11", None, (1, 1.5), ((1,),), ((1, 2, 3),), ("11",), {1: 2}])
def test_a_halo_that_is_no_number_of_cells_is_refused(halo: Any) -> None:
    with pytest.raises(UserError, match=r"a halo is of numbers of cells: got .*, expected one number, or"):
        normalize(halo, 2)


def test_a_halo_may_be_as_wide_as_the_array_and_no_wider() -> None:
    check_widths(((5, 5), (1, 0)), (5, 1))
    with pytest.raises(UserError, match="axis 1"):
        check_widths(((5, 5), (1, 2)), (5, 1))


def test_the_core_is_where_the_low_width_says() -> None:
    """A block's own cells are never the target of a transfer."""
    partition, widths = Partition((17,), (4,)), ((3, 6),)
    for rank in range(4):
        start, stop = bounds(17, 4, rank)
        own = range(3, 3 + stop - start)
        for transfer in transfers(partition, rank, widths, "reflect"):
            assert not set(range(*transfer.target[0].indices(99))) & set(own)
