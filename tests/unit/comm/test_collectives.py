"""Collectives in host memory against NumPy, on ranks as threads; tests/mpi runs the same cases on MPI's.

Data are integers so small that every order of summation is exact in every datatype, 8-bit floats too.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from meshrun.runner.comm.collectives.api import (
    DATATYPES,
    OPERATIONS,
    REDUCTIONS,
    Call,
    Collectives,
    Datatype,
    Pointer,
    hypercube,
)
from meshrun.runner.comm.collectives.host import AlignedBuffer, Scratch, average, combine
from meshrun.runner.comm.collectives.threads import ThreadCollectives
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import RunError, UserError

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
POISON = 0xA5
GUARD = 64  # bytes before and after what a call may write


@dataclass(frozen=True)
class Case:
    """begin: bytes from the start of a buffer to where the call's memory begins."""

    operation: str
    datatype: Datatype
    reduction: str = "sum"
    root: int = 0
    in_place: bool = False
    count: int = 5
    begin: int = GUARD

    def traffic(self, size: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple((i + 2 * j) % 4 * self.count for j in range(size)) for i in range(size))

    def data(self, rank: int, size: int) -> np.ndarray:
        """What a rank sends."""
        blocks = size if self.operation in ("reduce_scatter", "alltoall", "scatter") else 1
        length = sum(self.traffic(size)[rank]) if self.operation == "alltoallv" else blocks * self.count
        low = -3 if self.datatype.signed else 0
        low, high = {"prod": (1, 3), "max": (low, 8), "min": (low, 8)}.get(self.reduction, (0, 2))
        if self.operation not in REDUCING:
            low, high = 0, 9
        drawn = np.random.default_rng([rank, length]).integers(low, high, length)
        return drawn.astype(self.datatype.dtype)

    def reduced(self, size: int) -> np.ndarray:
        parts = np.array([self.data(rank, size).astype(np.float64) for rank in range(size)])
        factors = np.array([[2.0 if rank % 2 else 1.0] for rank in range(size)])
        rule: dict[str, Callable[[], np.ndarray]] = {
            "sum": lambda: parts.sum(0),
            "prod": lambda: parts.prod(0),
            "max": lambda: parts.max(0),
            "min": lambda: parts.min(0),
            "avg": lambda: parts.sum(0) / size if self.datatype.floating else parts.sum(0) // size,
            "mulsum": lambda: (parts * factors).sum(0),
        }
        return rule[self.reduction]().astype(self.datatype.dtype)

    def result(self, rank: int, size: int) -> np.ndarray | None:
        """What a rank has received in the end; None where it receives nothing."""
        count, traffic = self.count, self.traffic(size)
        mine = slice(rank * count, (rank + 1) * count)
        if self.operation in ("reduce", "gather") and rank != self.root:
            return None
        if self.operation in ("all_reduce", "reduce"):
            return self.reduced(size)
        if self.operation == "reduce_scatter":
            return self.reduced(size)[mine]
        if self.operation in ("all_gather", "gather", "hypercube"):
            return np.concatenate([self.data(peer, size) for peer in range(size)])
        if self.operation == "alltoall":
            return np.concatenate([self.data(peer, size)[mine] for peer in range(size)])
        if self.operation == "alltoallv":
            begins = [sum(row[:rank]) for row in traffic]
            parts = [self.data(p, size)[begins[p] : begins[p] + traffic[p][rank]] for p in range(size)]
            return np.concatenate(parts)
        if self.operation == "scatter":
            return self.data(self.root, size)[mine]
        return self.data(self.root if self.operation == "broadcast" else (rank - 1) % size, size)

    def places(self, group: Collectives) -> tuple[Pointer, Pointer]:
        """Where the call sends from and receives to, in poisoned memory, with room for whatever it needs."""
        itemsize = self.datatype.itemsize
        own = self.begin + group.rank * self.count * itemsize
        room = 2 * GUARD + itemsize * self.count * max(group.size, 3 * group.size)
        buffers = [group.allocate(room) for _ in range(2)]
        for buffer in buffers:
            buffer.array.fill(POISON)
        send, recv = buffers[0], buffers[-1]
        if not self.in_place:
            return Pointer(send, self.begin), Pointer(recv, self.begin)
        if self.operation in ("all_gather", "gather", "hypercube"):
            return Pointer(recv, own), Pointer(recv, self.begin)
        if self.operation in ("reduce_scatter", "scatter"):
            return Pointer(recv, self.begin), Pointer(recv, own)
        return Pointer(recv, self.begin), Pointer(recv, self.begin)


def cases(operation: str, datatype: Datatype, size: int, counts: tuple[int, ...] = (5, 0)) -> Iterator[Case]:
    for reduction in REDUCTIONS if operation in REDUCING else ("sum",):
        for root in range(size) if operation in ROOTED else (0,):
            for in_place in (False, True):
                for count in counts:
                    yield Case(operation, datatype, reduction, root, in_place, count)


def faults(group: Collectives, case: Case) -> list[str]:
    """Make the call; what is wrong with it on this rank, which does not stop: the others wait for it."""
    send, recv = case.places(group)
    sent, wanted = case.data(group.rank, group.size), case.result(group.rank, group.size)
    send.bytes(sent.nbytes)[:] = sent.view(np.uint8)
    before_send, before_recv = send.buffer.array.copy(), recv.buffer.array.copy()
    traffic = case.traffic(group.size) if case.operation == "alltoallv" else None
    call = Call(
        case.operation,
        send,
        recv,
        case.count,
        case.datatype,
        case.reduction,
        case.root,
        case.in_place,
        traffic,
    )
    bound = group.bind(call)
    group.issue([bound] if case.in_place else [bound, bound])  # out of place, again is the same
    group.wait()

    found = []
    if not case.in_place and not np.array_equal(send.buffer.array, before_send):
        found.append(f"rank {group.rank} {case}: the send buffer has changed")
    if wanted is None:
        wanted = np.empty(0, case.datatype.dtype)
    got = recv.bytes(wanted.nbytes).view(wanted.dtype)
    if got.tobytes() != wanted.tobytes():
        found.append(f"rank {group.rank} {case}: got {got}, expected {wanted}")
    if case.in_place:  # the rest of the call's memory is its own, beyond it begins what is not
        extent = max(sent.nbytes + send.offset, wanted.nbytes + recv.offset)
        if case.operation in ("all_gather", "gather", "hypercube", "reduce_scatter", "scatter"):
            extent = case.begin + group.size * case.count * case.datatype.itemsize
        rest = [slice(0, case.begin), slice(extent, None)]
    else:
        rest = [slice(0, recv.offset), slice(recv.offset + wanted.nbytes, None)]
    if any(not np.array_equal(recv.buffer.array[part], before_recv[part]) for part in rest):
        found.append(f"rank {group.rank} {case}: memory beyond the result has changed")
    return found


def all_faults(group: Collectives, operation: str, counts: tuple[int, ...] = (5, 0)) -> list[str]:
    return [
        fault
        for datatype in DATATYPES.values()
        for case in cases(operation, datatype, group.size, counts)
        for fault in faults(group, case)
    ]


@pytest.mark.parametrize(
    ("operation", "size"),
    [(name, size) for name in OPERATIONS for size in ((1, 2, 4) if name == "hypercube" else (1, 2, 3, 4, 5))],
)
def test_every_operation(operation: str, size: int) -> None:
    results = run_ranks(size, lambda comm: all_faults(ThreadCollectives(comm), operation))
    assert results == [[]] * size


def test_the_cases_can_fail() -> None:
    """A sum where a maximum belongs, found on every rank."""

    class Broken(ThreadCollectives):
        def bind(self, call: Call) -> Callable[[], object]:
            return super().bind(Call(*[*vars(call).values()][:5], reduction="sum", in_place=call.in_place))

    case = Case("all_reduce", DATATYPES["float"], "max")
    assert all(len(found) == 1 for found in run_ranks(3, lambda comm: faults(Broken(comm), case)))


def test_the_data_fit_every_datatype() -> None:
    for name in ("f8e4m3", "f8e5m2", "int8"):
        for reduction in set(REDUCTIONS) - {"avg"}:
            case = Case("all_reduce", DATATYPES[name], reduction, count=50)
            exact = Case("all_reduce", DATATYPES["double"], reduction, count=50)
            np.testing.assert_array_equal(case.reduced(5).astype(float), exact.reduced(5))


@pytest.mark.parametrize("operation", ["all_reduce", "alltoallv", "reduce", "sendrecv"])
def test_two_groups_at_once(operation: str) -> None:
    """Even and odd ranks of five."""

    def rank_main(comm: ThreadComm) -> list[str]:
        group = ThreadCollectives(comm.split(comm.rank % 2))
        assert (group.rank, group.size) == (comm.rank // 2, 2 if comm.rank % 2 else 3)
        return all_faults(group, operation)

    assert run_ranks(5, rank_main) == [[]] * 5


@pytest.mark.parametrize("operation", OPERATIONS)
def test_memory_that_is_not_aligned(operation: str) -> None:
    def rank_main(comm: ThreadComm) -> list[str]:
        group = ThreadCollectives(comm)
        kinds = [DATATYPES[name] for name in ("int32", "half", "double", "bfloat16")]
        return [f for kind in kinds for f in faults(group, Case(operation, kind, begin=GUARD + 1))]

    assert run_ranks(2, rank_main) == [[], []]


def test_a_hypercube_of_three() -> None:
    assert [hypercube(rank, 1) for rank in range(1)] == [[]]
    assert hypercube(5, 8) == [(4, 5, 4, 1), (7, 4, 6, 2), (1, 4, 0, 4)]
    for size in (3, 5, 6):
        with pytest.raises(UserError, match=f"power of two: got {size}"):
            hypercube(0, size)


def messages(group: Collectives) -> list[int]:
    """A number handed round by single messages, and then swapped between neighbours; what arrived."""
    size, rank, kind = group.size, group.rank, DATATYPES["int32"]
    send, recv = Pointer(group.allocate(4)), Pointer(group.allocate(4))
    call = Call("sendrecv", send, recv, 1, kind)
    arrived = []
    send.bytes(4).view(np.int32)[0] = 10 + rank
    after, before = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        going = group.message(call, send_to=after)
        coming = group.message(call, receive_from=before)
        # Rank 0 begins, or nobody receives.
        group.issue([going, coming] if rank == 0 else [coming, going])
        arrived.append(int(recv.bytes(4).view(np.int32)[0]))
    peer = rank ^ 1
    if peer < size:
        group.issue([group.message(call, send_to=peer, receive_from=peer)])
        arrived.append(int(recv.bytes(4).view(np.int32)[0]))
    group.issue([group.message(call)])  # to nobody
    return arrived


def arriving(rank: int, size: int) -> list[int]:
    before = [10 + (rank - 1) % size] if size > 1 else []
    return before + ([10 + (rank ^ 1)] if rank ^ 1 < size else [])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_messages(size: int) -> None:
    got = run_ranks(size, lambda comm: messages(ThreadCollectives(comm)))
    assert got == [arriving(rank, size) for rank in range(size)]


def test_integers_wrap_around() -> None:
    def rank_main(comm: ThreadComm) -> list[int]:
        group = ThreadCollectives(comm)
        send, recv = Pointer(group.allocate(2)), Pointer(group.allocate(2))
        send.bytes(2).view(np.int8)[:] = [100, -100]
        group.bind(Call("all_reduce", send, recv, 2, DATATYPES["int8"], "mulsum"))()
        return [int(value) for value in recv.bytes(2).view(np.int8)]

    assert run_ranks(2, rank_main) == [[44, -44]] * 2  # 300 - 256


@pytest.mark.filterwarnings("error")
def test_overflow_is_silent() -> None:
    """A timed loop adds its own results up; a warning on the first infinity would only worry."""
    for name in ("half", "float", "bfloat16", "f8e4m3", "f8e5m2"):
        array = np.full(3, 8, DATATYPES[name].dtype)
        for _ in range(200):
            combine(np.add, array, array.copy())
        average(array, 3)
        if name != "f8e4m3":  # has no infinity
            assert np.isinf(array.astype(float)).all()


def nearest(dtype: np.dtype, value: Fraction) -> np.ndarray:
    """The values of the type that are nearest to an exact one (two of them on a tie)."""
    near = dtype.type(float(value))
    steps = [np.nextafter(near, dtype.type(sign * 1000)) for sign in (-1, 1)]
    distances = {float(s): abs(Fraction(float(s)) - value) for s in [near, *steps] if np.isfinite(s)}
    return np.array([s for s, distance in distances.items() if distance == min(distances.values())])


@pytest.mark.parametrize("name", ["half", "bfloat16", "f8e4m3", "f8e5m2", "float", "double"])
@pytest.mark.parametrize("ranks", [1, 3, 5, 7, 9, 11, 1000, 4099])
def test_averages_are_the_nearest_values(name: str, ranks: int) -> None:
    dtype = DATATYPES[name].dtype
    values = np.array([1, 1.5, 2, 3, 5, 7, 10, 12, 96, 224], dtype)
    got = values.copy()
    average(got, ranks)
    for value, quotient in zip(values, got, strict=True):
        assert float(quotient) in nearest(dtype, Fraction(float(value)) / ranks), (value, ranks)


def test_calls_share_their_scratch() -> None:
    """Twenty calls of a loop must not take twenty buffers beside their own."""
    scratch = Scratch()
    small, large = scratch.pointer("input", 10), scratch.pointer("input", 1000)
    assert scratch.pointer("input", 500).address == large.address
    assert scratch.pointer("result", 500).address not in (small.address, large.address)


def test_integer_averages_round_down() -> None:
    for name in ("int8", "uint8", "int32", "int64", "uint64"):
        dtype = DATATYPES[name].dtype
        values = np.array([0, 1, 2, 3, 99, 100, np.iinfo(dtype).max], dtype)
        for ranks in (1, 3, 200):  # 200 is no int8
            got = values.copy()
            average(got, ranks)
            assert got.tolist() == [int(value) // ranks for value in values.tolist()]


def test_numpys_dtypes() -> None:
    assert DATATYPES["half"].dtype == np.float16
    assert DATATYPES["bfloat16"].dtype == ml_dtypes.bfloat16
    for datatype in DATATYPES.values():
        dtype = datatype.dtype
        assert (dtype.name, dtype.itemsize) == (datatype.numpy, datatype.itemsize)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 12345])
def test_memory(nbytes: int) -> None:
    buffer = ThreadCollectives(ThreadComm()).allocate(nbytes)
    assert buffer.nbytes == nbytes == buffer.array.size
    assert nbytes == 0 or buffer.address % mmap.PAGESIZE == 0
    assert buffer.array.dtype == np.uint8
    if nbytes:
        buffer.array[-1] = 3
        assert Pointer(buffer, nbytes - 1).bytes(1).tolist() == [3]


@pytest.mark.parametrize("nbytes", [1 << 62, sys.maxsize, 1 << 70])
def test_too_much_memory(nbytes: int) -> None:
    with pytest.raises(MemoryError):
        ThreadCollectives(ThreadComm()).allocate(nbytes)


def test_what_host_memory_lacks() -> None:
    group = ThreadCollectives(ThreadComm())
    for refused, hint in (
        (lambda: group.register(group.allocate(8), 2), "got -R 2.*without -R"),
        (lambda: group.captured([]), "without -G"),
    ):
        with pytest.raises(UserError, match=hint) as caught:
            refused()
        assert caught.value.everywhere


def test_time_and_order() -> None:
    group = ThreadCollectives(ThreadComm())
    begin, end = group.marks(2)
    done: list[int] = []
    group.issue([begin.record, group.grouped([lambda: done.append(1), lambda: done.append(2)]), end.record])
    group.grouped([])()
    assert done == [1, 2]
    assert not group.asynchronous
    assert group.passed(end)
    assert group.elapsed(begin, end) == end.seconds - begin.seconds >= 0
    assert math.isclose(group.elapsed(end, begin), -group.elapsed(begin, end))


def test_labels() -> None:
    assert ThreadCollectives(ThreadComm()).label == "one process, host memory"
    labels = run_ranks(2, lambda comm: ThreadCollectives(comm).label)
    assert labels == ["threads of one process, host memory"] * 2


def test_abort_wakes_those_who_wait() -> None:
    def rank_main(comm: ThreadComm) -> None:
        group = ThreadCollectives(comm)
        if comm.rank == 0:
            group.abort()
            return
        place = Pointer(group.allocate(4))
        group.issue([group.bind(Call("broadcast", place, place, 1, DATATYPES["float"], in_place=True))])

    with pytest.raises(RunError, match="no message from rank 0 to rank 1"):
        run_ranks(2, rank_main)


def test_the_lone_rank_copies_and_no_more() -> None:
    """In place nothing is left to do, as in NCCL."""
    group = ThreadCollectives(ThreadComm())
    place = Pointer(AlignedBuffer(np.arange(8, dtype=np.uint8)))
    for operation in OPERATIONS:
        call = Call(operation, place, place, 2, DATATYPES["float"], in_place=True, traffic=((2,),))
        group.bind(call)()
        assert place.bytes(8).tolist() == [*range(8)]
