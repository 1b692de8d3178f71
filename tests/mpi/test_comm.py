"""MPI's ranks, at any number of them: mpiexec -n 3 python -m pytest --with-mpi tests/mpi."""

from __future__ import annotations

import numpy as np
import pytest
from numbered import misnumbered, number

from meshrun.runner.comm.api import Operation
from meshrun.runner.comm.mpi import MpiComm

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]
DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", ">f8", "complex64", "complex128"]


def content(sender: int, receiver: int, number: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A message that both ends can compute."""
    rng = np.random.default_rng([sender, receiver, number])
    return rng.integers(0, 100, shape).astype(dtype)


def swap(comm: MpiComm, shape: tuple[int, ...], dtype: str, count: int = 1) -> None:
    """`count` messages from every rank to every rank, itself included, checked where they arrive."""
    peers = range(comm.size)
    sends = [(p, content(comm.rank, p, n, shape, dtype)) for n in range(count) for p in peers]
    receives = [(p, np.full(shape, 111, dtype)) for _ in range(count) for p in peers]
    comm.exchange(sends, receives).wait()
    expected = [content(p, comm.rank, n, shape, dtype) for n in range(count) for p in peers]
    for (_, got), wanted in zip(receives, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dtype_arrives(comm: MpiComm, dtype: str) -> None:
    swap(comm, (3, 5), dtype)


@pytest.mark.parametrize("shape", [(), (0,), (4, 0, 2), (1,), (7, 11, 13)])
def test_any_shape_arrives(comm: MpiComm, shape: tuple[int, ...]) -> None:
    swap(comm, shape, "float32")


def test_many_messages_keep_their_order(comm: MpiComm) -> None:
    swap(comm, (5,), "int32", count=100)


def test_big_messages(comm: MpiComm) -> None:
    swap(comm, (1 << 20,), "int32", count=2)  # far beyond what is sent before the receiver asks


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 250, 300])
def test_a_message_larger_than_a_piece(comm: MpiComm, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr("meshrun.runner.comm.mpi.PIECE", 400)  # 100 elements
    swap(comm, (length,), "float32", count=3)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_message_of_more_than_2_gib(comm: MpiComm) -> None:
    """From the first rank to the last."""
    if comm.size == 1:
        pytest.skip("two ranks")
    last, wrong = comm.size - 1, []
    if comm.rank in (0, last):
        array = np.empty((1 << 28) + 5, np.int64)
        if comm.rank == 0:
            number(array)
            comm.exchange([(last, array)], []).wait()
        else:
            comm.exchange([], [(0, array)]).wait()
            wrong = misnumbered(array)
    assert comm.allgather(wrong) == [[]] * comm.size


def test_nothing_to_exchange(comm: MpiComm) -> None:
    comm.exchange([], []).wait()


def test_a_ring(comm: MpiComm) -> None:
    """Each rank sends right and receives from the left, which no order of blocking calls could do."""
    value, right, left = np.array([comm.rank]), (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(1, comm.size + 1):
        arrived = np.empty_like(value)
        comm.exchange([(right, value)], [(left, arrived)]).wait()
        value = arrived
        assert value[0] == (comm.rank - step) % comm.size


def test_an_array_with_gaps_is_refused(comm: MpiComm) -> None:
    with pytest.raises(ValueError, match="C-contiguous"):
        comm.exchange([], [(comm.rank, np.zeros((4, 4))[:, ::2])])
    with pytest.raises(ValueError, match="C-contiguous"):
        comm.exchange([(comm.rank, np.zeros((4, 4)).T)], [])


REDUCED = [
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex128",
]


@pytest.mark.parametrize("operation", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", REDUCED)
def test_all_reduce(comm: MpiComm, dtype: str, operation: Operation) -> None:
    if dtype == "complex128" and operation in ("min", "max"):
        pytest.skip("complex numbers have no order")
    inputs = np.random.default_rng(5).integers(1, 3, (comm.size, 3, 4)).astype(dtype)
    array = inputs[comm.rank].copy()
    comm.all_reduce(array, operation)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, getattr(inputs, operation)(axis=0))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_bytes_wrap_round(comm: MpiComm, dtype: str) -> None:
    inputs = np.random.default_rng(7).integers(0, 256, (comm.size, 1000)).astype(np.uint8).view(dtype)
    array = inputs[comm.rank].copy()
    comm.all_reduce(array, "sum")
    np.testing.assert_array_equal(array, inputs.sum(axis=0, dtype=dtype))


def test_half_precision_is_added_in_single_and_rounded_once(comm: MpiComm) -> None:
    array = np.full(2, 2048 if comm.rank == 0 else 1, np.float16)
    comm.all_reduce(array, "sum")
    # Half precision has no 2049: one by one, each 1 would be lost.
    assert array.tolist() == [float(np.float16(2048 + comm.size - 1))] * 2


@pytest.mark.parametrize("shape", [(), (0,)])
def test_all_reduce_of_little(comm: MpiComm, shape: tuple[int, ...]) -> None:
    array = np.ones(shape)
    comm.all_reduce(array, "sum")
    np.testing.assert_array_equal(array, np.full(shape, comm.size))


def test_control_values(comm: MpiComm) -> None:
    assert comm.broadcast({"from": comm.rank}) == {"from": 0}
    assert comm.allgather(comm.rank**2) == [rank**2 for rank in range(comm.size)]
    comm.barrier()


def test_all_ranks_of_this_machine_share_memory(comm: MpiComm) -> None:
    assert comm.shared_memory_size() == comm.size


def test_our_messages_do_not_meet_those_of_the_program_around_us(comm: MpiComm) -> None:
    from mpi4py import MPI

    theirs = MPI.COMM_WORLD.irecv(source=comm.rank, tag=MPI.ANY_TAG)
    arrived = np.zeros(1, int)
    comm.exchange([(comm.rank, np.array([7]))], [(comm.rank, arrived)]).wait()
    assert arrived[0] == 7
    MPI.COMM_WORLD.send("theirs", comm.rank)
    assert theirs.wait() == "theirs"
