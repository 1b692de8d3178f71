"""Collectives in host memory through MPI: `runner.comm.collectives.api` for CPUs.

A bound call is a method of mpi4py with its arguments, so that a timed loop measures MPI. Operations that MPI
does not have take more steps, some through scratch memory shared by all calls:

- half, bfloat16 and the 8-bit floats are not MPI types: they move as bytes, and are reduced by a
  user-defined operator (NumPy, rounding to their own type after each step);
- avg divides the sums in the receive buffer, mulsum sums from a scratch buffer;
- out-of-place broadcast copies on the root first, in-place alltoallv sends from a scratch copy (MPI's
  in-place form requires equal counts from i to j and from j to i), in-place reduce_scatter receives into a
  scratch buffer (MPI's in-place form writes the result at the start of the buffer, over a block of the
  input).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collectives.api import Call, Datatype, Function, Pointer, hypercube
from meshrun.runner.comm.collectives.host import (
    COMBINE,
    HostMemory,
    averaged,
    combine,
    copied,
    in_turn,
    premultiplied,
)
from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.errors import RunError, UserError, first_line

C_INT = (1 << 31) - 1
LARGEST_UNIT = 1 << 20  # bytes
NATIVE = {
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float": "FLOAT",
    "double": "DOUBLE",
}
OPERATORS = {"sum": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN", "avg": "SUM", "mulsum": "SUM"}


@dataclasses.dataclass(frozen=True)
class Unit:
    """The MPI type that counts refer to. native: whether MPI's own operators support it."""

    kind: Any
    nbytes: int
    native: bool = False


class MpiCollectives(HostMemory):
    """One rank of a group, over its own MPI communicator.

    control: the group's communicator. largest_count: the library's largest count; detected by default.
    """

    def __init__(self, control: Control, largest_count: int | None = None) -> None:
        if not isinstance(control, MpiComm):
            raise TypeError(f"the ranks of {type(control).__name__} are not MPI's")
        super().__init__()
        self.control, self.rank, self.size = control, control.rank, control.size
        self._mpi, self._comm = control._mpi, control._comm.Dup()
        self.label = f"MPI, host memory ({control.library})"
        self._largest_count = largest_count or _largest_count(self._mpi)
        self._types: dict[tuple[str, int], Any] = {}
        self._dtypes: dict[int, np.dtype[Any]] = {}
        self._operators: dict[str, Any] = {}

    def message(self, call: Call, *, send_to: int | None = None, receive_from: int | None = None) -> Function:
        unit, nbytes = self._unit(call, [call.count]), call.count * call.datatype.itemsize
        send, recv = self._part(unit, call.send, nbytes), self._part(unit, call.recv, nbytes)
        if send_to is None:
            return in_turn([] if receive_from is None else [partial(self._comm.Recv, recv, receive_from)])
        if receive_from is None:
            return partial(self._comm.Send, send, send_to)
        return partial(self._comm.Sendrecv, send, send_to, 0, recv, receive_from, 0)

    def issue(self, calls: Sequence[Function]) -> None:
        try:
            for call in calls:
                call()
        except self._mpi.Exception as reason:
            raise RunError("an MPI call failed", why=first_line(reason)) from reason

    def abort(self) -> None:
        pass  # MPI cannot end a call of another thread; the process has to end

    def close(self) -> None:
        for handle in [*self._types.values(), *self._operators.values(), self._comm]:
            handle.Free()

    def _all_reduce(self, call: Call) -> list[Function]:
        before, call = premultiplied(call, self.rank, call.count, self.scratch)
        unit, nbytes = self._unit(call, [call.count], reduced=True), call.count * call.datatype.itemsize
        send = self._mpi.IN_PLACE if call.in_place else self._part(unit, call.send, nbytes)
        recv = self._part(unit, call.recv, nbytes)
        reduce = partial(self._comm.Allreduce, send, recv, self._operator(call, unit))
        return [*before, reduce, *averaged(call, self.size)]

    def _reduce(self, call: Call) -> list[Function]:
        before, call = premultiplied(call, self.rank, call.count, self.scratch)
        unit, nbytes = self._unit(call, [call.count], reduced=True), call.count * call.datatype.itemsize
        send, operator = self._part(unit, call.send, nbytes), self._operator(call, unit)
        if self.rank != call.root:
            return [*before, partial(self._comm.Reduce, send, None, operator, call.root)]
        recv = self._part(unit, call.recv, nbytes)
        reduce = partial(
            self._comm.Reduce, self._mpi.IN_PLACE if call.in_place else send, recv, operator, call.root
        )
        return [*before, reduce, *averaged(call, self.size)]

    def _reduce_scatter(self, call: Call) -> list[Function]:
        before, call = premultiplied(call, self.rank, call.count * self.size, self.scratch)
        unit = self._unit(call, [call.count] * self.size, reduced=True)
        nbytes = call.count * call.datatype.itemsize
        result = self.scratch.pointer("result", nbytes) if call.in_place else call.recv
        reduce = partial(
            self._comm.Reduce_scatter_block,
            self._part(unit, call.send, nbytes, self.size),
            self._part(unit, result, nbytes),
            self._operator(call, unit),
        )
        after = copied(call.recv.bytes(nbytes), result.bytes(nbytes))
        return [*before, reduce, *after, *averaged(call, self.size)]

    def _all_gather(self, call: Call) -> list[Function]:
        unit, nbytes = self._unit(call, [call.count] * self.size), call.count * call.datatype.itemsize
        send = self._mpi.IN_PLACE if call.in_place else self._part(unit, call.send, nbytes)
        return [partial(self._comm.Allgather, send, self._part(unit, call.recv, nbytes, self.size))]

    def _alltoall(self, call: Call) -> list[Function]:
        unit, nbytes = self._unit(call, [call.count] * self.size), call.count * call.datatype.itemsize
        send = self._mpi.IN_PLACE if call.in_place else self._part(unit, call.send, nbytes, self.size)
        return [partial(self._comm.Alltoall, send, self._part(unit, call.recv, nbytes, self.size))]

    def _alltoallv(self, call: Call) -> list[Function]:
        traffic = call.traffic or ()
        unit = self._unit(call, list(itertools.chain(*traffic)))
        going, coming = traffic[self.rank], [row[self.rank] for row in traffic]
        before: list[Function] = []
        send = call.send
        if call.in_place:
            nbytes = sum(going) * call.datatype.itemsize
            send = self.scratch.pointer("input", nbytes)
            before = copied(send.bytes(nbytes), call.send.bytes(nbytes))
        parts = [
            self._parts(unit, pointer, [count * call.datatype.itemsize for count in counts])
            for pointer, counts in ((send, going), (call.recv, coming))
        ]
        return [*before, partial(self._comm.Alltoallv, *parts)]

    def _broadcast(self, call: Call) -> list[Function]:
        unit, nbytes = self._unit(call, [call.count]), call.count * call.datatype.itemsize
        place = copied(call.recv.bytes(nbytes), call.send.bytes(nbytes)) if self.rank == call.root else []
        return [*place, partial(self._comm.Bcast, self._part(unit, call.recv, nbytes), call.root)]

    def _gather(self, call: Call) -> list[Function]:
        unit, nbytes = self._unit(call, [call.count] * self.size), call.count * call.datatype.itemsize
        send = self._part(unit, call.send, nbytes)
        if self.rank != call.root:
            return [partial(self._comm.Gather, send, None, call.root)]
        recv = self._part(unit, call.recv, nbytes, self.size)
        return [partial(self._comm.Gather, self._mpi.IN_PLACE if call.in_place else send, recv, call.root)]

    def _scatter(self, call: Call) -> list[Function]:
        unit, nbytes = self._unit(call, [call.count] * self.size), call.count * call.datatype.itemsize
        recv = self._part(unit, call.recv, nbytes)
        if self.rank != call.root:
            return [partial(self._comm.Scatter, None, recv, call.root)]
        send = self._part(unit, call.send, nbytes, self.size)
        return [partial(self._comm.Scatter, send, self._mpi.IN_PLACE if call.in_place else recv, call.root)]

    def _sendrecv(self, call: Call) -> list[Function]:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        if not call.in_place:
            return [self.message(call, send_to=after, receive_from=before)]
        unit, nbytes = self._unit(call, [call.count]), call.count * call.datatype.itemsize
        both = self._part(unit, call.recv, nbytes)
        return [partial(self._comm.Sendrecv_replace, both, after, 0, before, 0)]

    def _hypercube(self, call: Call) -> list[Function]:
        unit, nbytes = self._unit(call, [call.count] * self.size), call.count * call.datatype.itemsize

        def blocks(first: int, count: int) -> Any:
            pointer = dataclasses.replace(call.recv, offset=call.recv.offset + first * nbytes)
            return self._part(unit, pointer, count * nbytes)

        own = dataclasses.replace(call.recv, offset=call.recv.offset + self.rank * nbytes)
        steps = copied(own.bytes(nbytes), call.send.bytes(nbytes))
        for peer, mine, theirs, count in hypercube(self.rank, self.size):
            send, recv = blocks(mine, count), blocks(theirs, count)
            steps.append(partial(self._comm.Sendrecv, send, peer, 0, recv, peer, 0))
        return steps

    # Describe memory to MPI.

    def _part(self, unit: Unit, pointer: Pointer, nbytes: int, blocks: int = 1) -> tuple[Any, int, Any]:
        memory = self._mpi.buffer.frombuffer(pointer.bytes(nbytes * blocks))
        return memory, nbytes // unit.nbytes, unit.kind

    def _parts(self, unit: Unit, pointer: Pointer, nbytes: Sequence[int]) -> tuple[Any, Any, Any]:
        counts = [length // unit.nbytes for length in nbytes]
        begins = [0, *itertools.accumulate(counts)][:-1]
        return self._mpi.buffer.frombuffer(pointer.bytes(sum(nbytes))), (counts, begins), unit.kind

    def _unit(self, call: Call, counts: Sequence[int], reduced: bool = False) -> Unit:
        """The unit for messages of these counts: a larger one where MPI could not count the elements.

        The sum of the counts must be representable, because MPI libraries add counts in their own type.
        """
        size, native = call.datatype.itemsize, NATIVE.get(call.datatype.name)
        if reduced and size == 1 and OPERATORS[call.reduction] == "SUM":
            native = None  # Open MPI's AVX code saturates sums of bytes; NCCL and NumPy wrap around
        width = size if native or reduced else 1
        total = sum(counts) * size
        if total // width > self._largest_count:
            width = math.gcd(LARGEST_UNIT, *(count * size for count in counts))
            if total // width > self._largest_count:
                raise UserError(
                    f"this MPI cannot count the elements of {call.operation}",
                    got=f"{sum(counts)} of {size} bytes",
                    expected=f"at most {self._largest_count}, or counts with a larger common divisor",
                    hint="sizes that are powers of two, or an MPI library of MPI 4.0 or later",
                    everywhere=True,
                )
            return Unit(self._contiguous(call.datatype, width), width)
        if native:
            return Unit(getattr(self._mpi, native), width, native=True)
        return Unit(self._contiguous(call.datatype, width) if reduced else self._mpi.BYTE, width)

    def _contiguous(self, datatype: Datatype, nbytes: int) -> Any:
        """An MPI type of that many bytes, from which the operator knows the element type."""
        key = (datatype.name, nbytes)
        if key not in self._types:
            made = self._types[key] = self._mpi.BYTE.Create_contiguous(nbytes).Commit()
            self._dtypes[made.handle] = datatype.dtype
        return self._types[key]

    def _operator(self, call: Call, unit: Unit) -> Any:
        """MPI's own operator, or for non-native units ours: one for all datatypes, as mpi4py allows few."""
        name = OPERATORS[call.reduction]
        if unit.native:
            return getattr(self._mpi, name)
        if name not in self._operators:
            function = partial(_combine, self._dtypes, COMBINE[call.reduction])
            self._operators[name] = self._mpi.Op.Create(function, commute=True)
        return self._operators[name]


def _combine(
    dtypes: dict[int, np.dtype[Any]], ufunc: np.ufunc, source: Any, target: Any, datatype: Any
) -> None:
    """An MPI_User_function: target = ufunc(target, source)."""
    dtype = dtypes[datatype.handle]
    combine(ufunc, np.frombuffer(target, dtype), np.frombuffer(source, dtype))


def _largest_count(mpi: Any) -> int:
    """The library's largest count: of MPI_Count since MPI 4.0, of a C int before. Tested by a call instead of
    by version, because mpi4py may have been built without large counts."""
    try:
        mpi.BYTE.Pack_size(C_INT + 1, mpi.COMM_SELF)
    except mpi.Exception:
        return C_INT
    return (1 << 63) - 1
