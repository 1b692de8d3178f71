"""Collectives in host memory on MPI's ranks: mpiexec -n 3 python -m pytest --with-mpi tests/mpi.

The cases, and what NumPy makes of them, are those of tests/unit/comm/test_collectives.py.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numbered import misnumbered, number

from meshrun.runner.comm.clock import Clock, clock_offsets
from meshrun.runner.comm.collectives import device_mpi
from meshrun.runner.comm.collectives.api import DATATYPES, OPERATIONS, REDUCTIONS, Call, Pointer
from meshrun.runner.comm.collectives.mpi import MpiCollectives
from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]
SAME = Path(__file__).parents[1] / "unit" / "comm" / "test_collectives.py"
same = SimpleNamespace(**runpy.run_path(str(SAME)))


@pytest.fixture(scope="module")
def group(comm: MpiComm) -> Iterator[MpiCollectives]:
    made = MpiCollectives(comm)
    yield made
    made.close()


def check(comm: MpiComm, found: list[str]) -> None:
    """Every rank fails when one does."""
    assert comm.allgather(found) == [[]] * comm.size


def skip_odd_hypercubes(operation: str, size: int) -> None:
    if operation == "hypercube" and size & (size - 1):
        pytest.skip("a power of two")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation(comm: MpiComm, group: MpiCollectives, operation: str) -> None:
    skip_odd_hypercubes(operation, comm.size)
    check(comm, same.all_faults(group, operation))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_elements_than_the_library_counts(comm: MpiComm, operation: str) -> None:
    """They are counted in larger units, and reduced by an operator of ours."""
    skip_odd_hypercubes(operation, comm.size)
    group = MpiCollectives(comm, largest_count=100)
    check(comm, same.all_faults(group, operation, (4096, 0)))
    group.close()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_elements_than_can_be_counted(comm: MpiComm, operation: str) -> None:
    skip_odd_hypercubes(operation, comm.size)
    group = MpiCollectives(comm, largest_count=100)
    place, row = Pointer(group.allocate(0)), (4097,) * comm.size
    call = Call(operation, place, place, 4097, DATATYPES["int8"], traffic=(row,) * comm.size)
    with pytest.raises(UserError, match=rf"elements of {operation}: got \d+ of 1 bytes") as caught:
        group.bind(call)
    assert caught.value.everywhere
    group.close()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_elements_than_an_int_counts(comm: MpiComm, operation: str) -> None:
    """A rank alone gets its own elements: 2 GiB."""
    if comm.size > 1:
        pytest.skip("one rank")
    group, count = MpiCollectives(comm), (1 << 31) + 16
    send, recv = Pointer(group.allocate(count)), Pointer(group.allocate(count))
    number(send.bytes(count).view(np.int64))
    call = Call(operation, send, recv, count, DATATYPES["int8"], traffic=((count,),))
    group.issue([group.bind(call)])
    assert misnumbered(recv.bytes(count).view(np.int64)) == []
    group.close()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_memory_that_is_not_aligned(comm: MpiComm, group: MpiCollectives, operation: str) -> None:
    skip_odd_hypercubes(operation, comm.size)
    kinds = [DATATYPES[name] for name in ("int32", "half", "double", "bfloat16")]
    found = [f for kind in kinds for f in same.faults(group, same.Case(operation, kind, begin=65))]
    check(comm, found)


@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("name", ["float", "half", "bfloat16", "f8e4m3", "f8e5m2"])
def test_big_messages(comm: MpiComm, group: MpiCollectives, operation: str, name: str) -> None:
    """MPI reduces them in pieces."""
    chosen = [same.Case(operation, DATATYPES[name], how, count=100_001) for how in REDUCTIONS]
    check(comm, [fault for case in chosen for fault in same.faults(group, case)])


@pytest.mark.parametrize("operation", ["all_gather", "alltoall", "alltoallv", "sendrecv", "broadcast"])
@pytest.mark.parametrize("in_place", [False, True])
def test_big_messages_that_move(comm: MpiComm, group: MpiCollectives, operation: str, in_place: bool) -> None:
    case = same.Case(operation, DATATYPES["half"], in_place=in_place, count=100_001)
    check(comm, same.faults(group, case))


@pytest.mark.parametrize("operation", ["all_reduce", "alltoallv", "reduce", "sendrecv"])
def test_two_groups_at_once(comm: MpiComm, operation: str) -> None:
    control = comm.split(comm.rank % 2)
    group = MpiCollectives(control)
    assert (group.rank, group.size) == (comm.rank // 2, len(range(comm.rank % 2, comm.size, 2)))
    check(comm, same.all_faults(group, operation))
    group.close()
    control.close()


def test_messages(comm: MpiComm, group: MpiCollectives) -> None:
    assert same.messages(group) == same.arriving(comm.rank, comm.size)


def test_integers_wrap_around(comm: MpiComm, group: MpiCollectives) -> None:
    send, recv = Pointer(group.allocate(2)), Pointer(group.allocate(2))
    send.bytes(2).view(np.int8)[:] = [100, -100]
    for reduction, factor in (("sum", comm.size), ("mulsum", comm.size + comm.size // 2)):
        group.bind(Call("all_reduce", send, recv, 2, DATATYPES["int8"], reduction))()
        expected = [(100 * factor + 128) % 256 - 128, (-100 * factor + 128) % 256 - 128]
        assert recv.bytes(2).view(np.int8).tolist() == expected


def test_groups_come_and_go(comm: MpiComm) -> None:
    """More of them than MPI has room for operators, were they kept."""
    for _ in range(10):
        group = MpiCollectives(comm)
        for name in ("half", "bfloat16", "f8e4m3", "f8e5m2"):
            for reduction in REDUCTIONS:
                check(comm, same.faults(group, same.Case("all_reduce", DATATYPES[name], reduction)))
        group.close()


def test_a_call_that_mpi_refuses(group: MpiCollectives) -> None:
    place = Pointer(group.allocate(4))
    to_nobody = group.message(Call("sendrecv", place, place, 1, DATATYPES["float"]), send_to=group.size)
    with pytest.raises(RunError, match=r"an MPI call failed: .*rank"):
        group.issue([to_nobody])


def test_label(group: MpiCollectives) -> None:
    assert re.fullmatch(r"MPI, host memory \(\w[\w ]* \d+\.\d+\.\d+\)", group.label)


def test_other_ranks_are_refused() -> None:
    with pytest.raises(TypeError, match="ThreadComm"):
        MpiCollectives(ThreadComm())


def test_clocks_of_one_machine(comm: MpiComm) -> None:
    """Here every rank reads the same clock."""
    clocks = clock_offsets(comm)
    assert comm.allgather(clocks) == [clocks] * comm.size
    assert clocks[0] == Clock(0.0, 0.0)
    assert all(abs(clock.offset) <= clock.uncertainty + 1e-10 for clock in clocks)


# Device memory. The wheels' MPI takes none; NumPy's memory stands in for a GPU's where the rest is tested.


def test_an_mpi_that_is_not_cuda_aware_is_refused_by_name(comm: MpiComm) -> None:
    if device_mpi.device_memory_support()[0]:
        pytest.skip("this MPI is CUDA-aware")
    with pytest.raises(UserError, match="this MPI does not take device memory") as refused:
        device_mpi.DeviceMpiCollectives(comm, CpuBackend())
    assert comm.library in str(refused.value)
    assert "Query_cuda_support" in str(refused.value)
    assert "Try: " in str(refused.value)
    assert refused.value.everywhere


@pytest.fixture(scope="module")
def on_device(comm: MpiComm) -> Iterator[device_mpi.DeviceMpiCollectives]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_mpi, "device_memory_support", lambda: (True, "an MPI"))
        made = device_mpi.DeviceMpiCollectives(comm, CpuBackend())
    yield made
    made.close()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("in_place", [False, True])
def test_operations_on_a_device(
    on_device: device_mpi.DeviceMpiCollectives, group: MpiCollectives, operation: str, in_place: bool
) -> None:
    """The same bytes as in host memory, with the device waited for between steps."""
    if operation == "hypercube" and group.size & (group.size - 1):
        pytest.skip("needs a power of two")
    traffic = tuple(tuple(3 + i + j for j in range(group.size)) for i in range(group.size))
    results = []
    for one in (on_device, group):
        send, recv = one.allocate(4096), one.allocate(4096)
        for start, buffer in enumerate((send, recv)):
            buffer.array.view("int32")[...] = np.arange(start, start + 1024) % 7 + 100 * group.rank
        given = Pointer(recv if in_place else send)
        call = Call(operation, given, Pointer(recv), 8, DATATYPES["int32"], "max", 0, in_place, traffic)
        one.issue([one.bind(call)])
        results.append(np.array(recv.array))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("datatype", "reduction"), [("half", "sum"), ("int8", "sum"), ("float", "avg")])
def test_what_mpi_does_not_reduce_on_a_device(
    on_device: device_mpi.DeviceMpiCollectives, datatype: str, reduction: str
) -> None:
    place = Pointer(on_device.allocate(64))
    call = Call("all_reduce", place, place, 4, DATATYPES[datatype], reduction, 0, True)
    with pytest.raises(UserError, match=f"got -d {datatype} -o {reduction}.* Try: --transport nccl"):
        on_device.bind(call)


def test_a_message_that_arrives_wrong_is_named(comm: MpiComm, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MPI that says yes, and moves nothing in long messages."""

    class Lost(CpuBackend):
        def download(self, device: Any, host: Any) -> None:
            super().download(device, host)
            if comm.rank == comm.size - 1 and host.nbytes > 64:
                host[-1] ^= 1

    monkeypatch.setattr(device_mpi, "device_memory_support", lambda: (True, "an MPI"))
    with pytest.raises(RunError, match=f"4194304 bytes at rank {comm.size - 1} of the group") as failed:
        device_mpi.DeviceMpiCollectives(comm, Lost())
    assert failed.value.everywhere
