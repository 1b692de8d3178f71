"""Counts, rounding, offsets and bandwidths against tables computed by hand from nccl-tests 2.19.6.

The tables come from reading getCollByteCount and getBw in its src/<op>.cu, for 1 to 9 ranks.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.bench.collectives.specs import SPECS, Counts, Traffic, bandwidths, data_layout
from meshrun.runner.comm.collectives.api import DATATYPES, Datatype
from meshrun.runner.comm.collectives.api import OPERATIONS as NAMES

RANKS = range(1, 10)
WIDTHS = {1: "int8", 2: "half", 4: "float", 8: "double"}
WIDE = [pytest.param(DATATYPES[name], id=name) for name in WIDTHS.values()]

# A rank's part in bytes, on 1 to 9 ranks: the size over 16 and over the ranks, rounded down, times 16.
PART = {
    7: (0, 0, 0, 0, 0, 0, 0, 0, 0),
    16: (16, 0, 0, 0, 0, 0, 0, 0, 0),
    100: (96, 48, 32, 16, 16, 16, 0, 0, 0),
    144: (144, 64, 48, 32, 16, 16, 16, 16, 16),
    1000: (992, 496, 320, 240, 192, 160, 128, 112, 96),
    1048576: (1048576, 524288, 349520, 262144, 209712, 174752, 149792, 131072, 116496),
}
# The size column of operations that move parts: ranks times the part.
PARTS = {
    7: (0, 0, 0, 0, 0, 0, 0, 0, 0),
    16: (16, 0, 0, 0, 0, 0, 0, 0, 0),
    100: (96, 96, 96, 64, 80, 96, 0, 0, 0),
    144: (144, 128, 144, 128, 80, 96, 112, 128, 144),
    1000: (992, 992, 960, 960, 960, 960, 896, 896, 864),
    1048576: (1048576, 1048576, 1048560, 1048576, 1048560, 1048512, 1048544, 1048576, 1048464),
}
# Elements of 1, 2, 4 and 8 bytes in a size, for operations that move it whole.
WHOLE = {
    7: (7, 3, 1, 0),
    16: (16, 8, 4, 2),
    100: (100, 50, 25, 12),
    144: (144, 72, 36, 18),
    1000: (1000, 500, 250, 125),
    1048576: (1048576, 524288, 262144, 131072),
}


def counts(operation: str, size: int, datatype: Datatype, ranks: int, spread: float = 1.0) -> Counts:
    elements = size // datatype.itemsize
    return SPECS[operation].counts(elements, datatype, ranks, Traffic(spread))


def size_column(counts: Counts, datatype: Datatype) -> int:
    return max(counts.send, counts.recv) * datatype.itemsize


def test_every_operation_is_here_in_the_same_order() -> None:
    assert tuple(SPECS) == NAMES
    assert SPECS["all_reduce"].program == "all_reduce_perf"


@pytest.mark.parametrize("size", WHOLE)
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "reduce", "sendrecv"])
def test_operations_on_the_whole_size(operation: str, size: int) -> None:
    for elements, name in zip(WHOLE[size], WIDTHS.values(), strict=True):
        for ranks in RANKS:
            assert counts(operation, size, DATATYPES[name], ranks) == Counts(
                count=elements, send=elements, recv=elements, send_step=0, recv_step=0, moved=elements
            )


@pytest.mark.parametrize("datatype", WIDE)
@pytest.mark.parametrize("size", PART)
@pytest.mark.parametrize(
    # Which of part and parts go in and come out, and which of them begins at rank times the part in place.
    ("operation", "sends", "receives", "send_moves", "recv_moves"),
    [
        ("all_gather", "part", "parts", True, False),
        ("gather", "part", "parts", True, False),
        ("hypercube", "part", "parts", True, False),
        ("reduce_scatter", "parts", "part", False, True),
        ("scatter", "parts", "part", False, True),
        ("alltoall", "parts", "parts", False, False),
    ],
)
def test_operations_on_parts(
    operation: str,
    sends: str,
    receives: str,
    send_moves: bool,
    recv_moves: bool,
    size: int,
    datatype: Datatype,
) -> None:
    for ranks, part, parts in zip(RANKS, PART[size], PARTS[size], strict=True):
        nbytes = {"part": part, "parts": parts}
        found = counts(operation, size, datatype, ranks)
        width = datatype.itemsize
        assert (found.count * width, found.send * width, found.recv * width) == (
            part, nbytes[sends], nbytes[receives]
        )  # fmt: skip
        assert found.send_step * width == (part if send_moves else 0)
        assert found.recv_step * width == (part if recv_moves else 0)
        assert size_column(found, datatype) == parts


@pytest.mark.parametrize("datatype", WIDE)
@pytest.mark.parametrize(
    ("spread", "ranks", "from_rank_0", "total"),
    [
        # Of 1000 bytes: 1 is by distance ...
        (1.0, 1, (992,), 992),
        (1.0, 2, (0, 992), 992),
        (1.0, 3, (0, 320, 640), 960),
        (1.0, 4, (0, 160, 320, 480), 960),
        (1.0, 5, (0, 96, 192, 288, 384), 960),
        (1.0, 6, (0, 64, 128, 192, 256, 320), 960),
        (1.0, 7, (0, 32, 80, 128, 160, 208, 256), 864),  # multiples of 42 2/3, down to 16
        (1.0, 8, (0, 32, 64, 96, 128, 160, 192, 224), 896),
        (1.0, 9, (0, 16, 48, 64, 96, 112, 144, 160, 192), 832),  # multiples of 24
        # ... 0 is alike, and between them a mixture.
        (0.0, 1, (992,), 992),
        (0.0, 4, (240, 240, 240, 240), 960),
        (0.0, 9, (96,) * 9, 864),
        (0.5, 2, (240, 736), 976),  # 248 and 744
        (0.5, 3, (160, 320, 480), 960),
        (0.5, 4, (112, 192, 272, 352), 928),  # 120, 200, 280, 360
    ],
)
def test_uneven_exchanges(
    spread: float, ranks: int, from_rank_0: tuple[int, ...], total: int, datatype: Datatype
) -> None:
    found = counts("alltoallv", 1000, datatype, ranks, spread)
    width = datatype.itemsize
    assert found.traffic is not None
    for rank, row in enumerate(found.traffic):
        there = tuple(row[(rank + distance) % ranks] * width for distance in range(ranks))
        assert there == from_rank_0
    assert found.count * width == PART[1000][ranks - 1]
    assert found.send * width == found.recv * width == found.moved * width == total
    assert found.send_step == found.recv_step == 0


def test_an_exchange_by_a_matrix_is_as_large_as_its_busiest_rank() -> None:
    matrix = ((0, 32, 64), (160, 16, 0), (0, 0, 48))
    found = SPECS["alltoallv"].counts(1 << 20, DATATYPES["float"], 3, Traffic(matrix=matrix))
    assert found == Counts(
        count=0, send=44, recv=40, send_step=0, recv_step=0, moved=44,
        traffic=((0, 8, 16), (40, 4, 0), (0, 0, 12)),
    )  # fmt: skip
    # Of a larger matrix than there are ranks, the first rows and columns.
    two = SPECS["alltoallv"].counts(1 << 20, DATATYPES["double"], 2, Traffic(matrix=matrix))
    assert two.traffic == ((0, 4), (20, 2))
    assert (two.send, two.recv, two.moved) == (22, 20, 22)


OTHERS = ("0", "1/2", "2/3", "3/4", "4/5", "5/6", "6/7", "7/8", "8/9")
FACTORS = {
    "all_reduce": ("0", "1", "4/3", "3/2", "8/5", "5/3", "12/7", "7/4", "16/9"),
    **dict.fromkeys(["all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter"], OTHERS),
    **dict.fromkeys(["broadcast", "reduce", "sendrecv", "hypercube"], ("1",) * 9),
}


@pytest.mark.parametrize("operation", NAMES)
def test_factors_of_bus_bandwidth(operation: str) -> None:
    for ranks, factor in zip(RANKS, FACTORS[operation], strict=True):
        assert SPECS[operation].factor(ranks) == pytest.approx(float(Fraction(factor)), rel=1e-15)


@pytest.mark.parametrize("datatype", WIDE)
@pytest.mark.parametrize(
    ("operation", "ranks", "algbw", "busbw"),
    [
        # 1000 bytes in a microsecond are 1 GB/s, where they are moved whole.
        ("all_reduce", 1, 1.0, 0.0),
        ("all_reduce", 4, 1.0, 1.5),
        ("broadcast", 4, 1.0, 1.0),
        ("reduce", 4, 1.0, 1.0),
        ("sendrecv", 4, 1.0, 1.0),
        # 4 parts of 240 bytes
        ("all_gather", 4, 0.96, 0.72),
        ("reduce_scatter", 4, 0.96, 0.72),
        ("alltoall", 4, 0.96, 0.72),
        ("alltoallv", 4, 0.96, 0.72),
        ("gather", 4, 0.96, 0.72),
        ("scatter", 4, 0.96, 0.72),
        ("hypercube", 4, 0.72, 0.72),
        # 8 parts of 112 bytes
        ("all_reduce", 8, 1.0, 1.75),
        ("all_gather", 8, 0.896, 0.784),
        ("hypercube", 8, 0.784, 0.784),
        ("hypercube", 1, 0.0, 0.0),
        # 9 parts of 96 bytes; by distance and rounded they are 832
        ("alltoall", 9, 0.864, 0.768),
        ("alltoallv", 9, 0.832, 0.7395555555555555),
    ],
)
def test_bandwidths(operation: str, ranks: int, algbw: float, busbw: float, datatype: Datatype) -> None:
    known = SPECS[operation]
    found = bandwidths(known, counts(operation, 1000, datatype, ranks), datatype, ranks, 1e-6)
    assert found == pytest.approx((algbw, busbw), rel=1e-12, abs=0)


def test_no_time_gives_no_bandwidth() -> None:
    known, datatype = SPECS["all_reduce"], DATATYPES["float"]
    assert bandwidths(known, counts("all_reduce", 1000, datatype, 2), datatype, 2, 0.0) == (0.0, 0.0)


def test_what_the_table_shows_of_each_operation() -> None:
    """Which take a reduction (and what is printed for the others), have a root, are checked in place."""
    assert {name for name, known in SPECS.items() if known.reduces} == {
        "all_reduce", "reduce_scatter", "reduce", "sendrecv",
    }  # fmt: skip
    assert {name for name, known in SPECS.items() if known.rooted} == {
        "broadcast", "reduce", "gather", "scatter",
    }  # fmt: skip
    assert {name for name, known in SPECS.items() if not known.in_place} == {
        "alltoall", "alltoallv", "sendrecv",
    }  # fmt: skip
    assert {known.shows for known in SPECS.values()} == {"none", ""}
    assert SPECS["hypercube"].shows == ""


SHAPES = st.tuples(
    st.sampled_from(NAMES),
    st.integers(0, 5000),
    st.sampled_from([*DATATYPES.values()]),
    st.integers(1, 9),
    st.floats(0, 1),
)


@given(SHAPES)
def test_no_operation_needs_more_memory_than_its_size(case: tuple[str, int, Datatype, int, float]) -> None:
    operation, size, datatype, ranks, spread = case
    found = counts(operation, size, datatype, ranks, spread)
    assert size_column(found, datatype) <= size
    # In place, the last rank's part ends where the receive buffer's share ends.
    for step in (found.send_step, found.recv_step):
        assert not step or step * ranks * datatype.itemsize == size_column(found, datatype)


@st.composite
def traffics(draw: st.DrawFn, ranks: int) -> Traffic:
    """A pattern by distance, or any matrix of multiples of 16 bytes."""
    cells = st.integers(0, 20).map(lambda units: 16 * units)
    rows = st.tuples(*ranks * [cells])
    return draw(st.builds(Traffic, st.floats(0, 1), st.none() | st.tuples(*ranks * [rows])))


@given(
    st.sampled_from(NAMES), st.integers(0, 5000), st.sampled_from([*DATATYPES.values()]),
    st.integers(1, 9), st.booleans(), st.data(),
)  # fmt: skip
def test_the_check_looks_at_every_element_of_a_result_once(
    operation: str, size: int, datatype: Datatype, ranks: int, in_place: bool, data: st.DataObject
) -> None:
    """Also where others receive more than this rank: nothing may be written there."""
    traffic = data.draw(traffics(ranks))
    rank, root = (data.draw(st.integers(0, ranks - 1)) for _ in range(2))
    known = SPECS[operation]
    found = known.counts(size // datatype.itemsize, datatype, ranks, traffic)
    plan = data_layout(known, found, ranks, rank, root, "sum", 1, in_place)
    end = 0
    for segment in plan.expected:
        assert segment.start == end
        end += segment.count
    assert end == found.recv
    assert all(segment.start + segment.count <= found.send for segment in plan.sent)
