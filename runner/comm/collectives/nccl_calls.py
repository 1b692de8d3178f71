"""Bind collective calls to raw pointers: one or several nccl4py functions with their arguments.

Everything that can be computed before a call is computed here; several calls can be made from C at once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cupy
import numpy as np

from meshrun.runner.comm import nccl
from meshrun.runner.comm.collectives.api import REDUCTIONS, Call, Datatype, Function, hypercube, premultiplier
from meshrun.runner.comm.collectives.call_batch import BUILT, Batch
from meshrun.runner.errors import UserError

NATIVE_ALLTOALL = 22800  # ncclAlltoAll, ncclGather and ncclScatter exist since NCCL 2.28
FLOAT8 = 22400
DEVICE_TO_DEVICE = 3  # cudaMemcpyDeviceToDevice


class CallSequence:
    """Several library calls, one after another."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Function]) -> None:
        self.parts = tuple(parts)

    def __call__(self) -> None:
        for part in self.parts:
            part()


class NcclCalls:
    """Binds calls of one communicator, on one stream (a cudaStream_t)."""

    def __init__(self, comm: nccl.Communicator, stream: int) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.library = nccl.version_number()
        self._nccl, self._handle, self._stream = comm.nccl, comm.handle, stream
        self._premultipliers: dict[str, int] = {}

    def bind(self, call: Call) -> Function:
        if call.datatype.name.startswith("f8") and self.library < FLOAT8:
            raise UserError(
                "this NCCL has no 8-bit floats", got=f"{call.datatype.name} with NCCL {nccl.version()}",
                expected="NCCL 2.24 or later", everywhere=True,
            )  # fmt: skip
        make: Function = getattr(self, f"_{call.operation}")(call)
        return make

    # Each of these returns the function that makes the call.

    def _bound(self, name: str, *arguments: Any) -> Function:
        return functools.partial(getattr(self._nccl, name), *arguments, self._handle, self._stream)

    def _whole(self, name: str, call: Call, *more: int) -> Function:
        """A collective function of NCCL. more: arguments after the datatype."""
        return self._bound(name, call.send.address, call.recv.address, call.count, call.datatype.code, *more)

    def _all_reduce(self, call: Call) -> Function:
        return self._whole("all_reduce", call, self._operator(call))

    def _reduce_scatter(self, call: Call) -> Function:
        return self._whole("reduce_scatter", call, self._operator(call))

    def _reduce(self, call: Call) -> Function:
        return self._whole("reduce", call, self._operator(call), call.root)

    def _broadcast(self, call: Call) -> Function:
        return self._whole("broadcast", call, call.root)

    def _all_gather(self, call: Call) -> Function:
        return self._whole("all_gather", call)

    def _alltoall(self, call: Call) -> Function:
        if self.library >= NATIVE_ALLTOALL:
            return self._whole("allto_all", call)
        sends = self._blocks("send", call.send.address, call, range(self.size))
        receives = self._blocks("recv", call.recv.address, call, range(self.size))
        return self.grouped([*itertools.chain(*zip(sends, receives, strict=True))])

    def _alltoallv(self, call: Call) -> Function:
        traffic = call.traffic or ()
        send, recv, size = call.send.address, call.recv.address, call.datatype.itemsize
        messages = []
        for peer in range(self.size):
            going, coming = traffic[self.rank][peer], traffic[peer][self.rank]
            if going:
                messages.append(self._message("send", send, going, call.datatype, peer))
            if coming:
                messages.append(self._message("recv", recv, coming, call.datatype, peer))
            send, recv = send + going * size, recv + coming * size
        return self.grouped(messages)

    def _gather(self, call: Call) -> Function:
        if not call.count:
            return _nothing
        if self.library >= NATIVE_ALLTOALL:
            return self._whole("gather", call, call.root)
        send = self._message("send", call.send.address, call.count, call.datatype, call.root)
        sources = range(self.size) if self.rank == call.root else ()
        return self.grouped([send, *self._blocks("recv", call.recv.address, call, sources)])

    def _scatter(self, call: Call) -> Function:
        if not call.count:
            return _nothing
        if self.library >= NATIVE_ALLTOALL:
            return self._whole("scatter", call, call.root)
        recv = self._message("recv", call.recv.address, call.count, call.datatype, call.root)
        targets = range(self.size) if self.rank == call.root else ()
        return self.grouped([*self._blocks("send", call.send.address, call, targets), recv])

    def _sendrecv(self, call: Call) -> Function:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        return self.message(call, send_to=after, receive_from=before)

    def _hypercube(self, call: Call) -> Function:
        send, recv, step = call.send.address, call.recv.address, call.count * call.datatype.itemsize
        steps: list[Function] = []
        if recv + self.rank * step != send:
            arguments = (recv + self.rank * step, send, step, DEVICE_TO_DEVICE, self._stream)
            steps.append(functools.partial(cupy.cuda.runtime.memcpyAsync, *arguments))
        for peer, mine, theirs, blocks in hypercube(self.rank, self.size):
            count = call.count * blocks
            going = self._message("send", recv + mine * step, count, call.datatype, peer)
            coming = self._message("recv", recv + theirs * step, count, call.datatype, peer)
            steps.append(self.grouped([going, coming]))
        return CallSequence(_flat(steps))

    def _message(self, name: str, address: int, count: int, datatype: Datatype, peer: int) -> Function:
        return self._bound(name, address, count, datatype.code, peer)

    def _blocks(self, name: str, address: int, call: Call, peers: Iterable[int]) -> list[Function]:
        """A message of `call.count` elements with each peer, at the peer's block of the memory at
        `address`."""
        step = call.count * call.datatype.itemsize
        return [self._message(name, address + r * step, call.count, call.datatype, r) for r in peers]

    def message(self, call: Call, *, send_to: int | None = None, receive_from: int | None = None) -> Function:
        messages = []
        if send_to is not None:
            messages.append(self._message("send", call.send.address, call.count, call.datatype, send_to))
        if receive_from is not None:
            messages.append(self._message("recv", call.recv.address, call.count, call.datatype, receive_from))
        return self.grouped(messages)

    def _operator(self, call: Call) -> int:
        """ncclRedOp_t. mulsum needs a user-defined operator, created once per datatype."""
        if self.size == 1 and call.datatype.name.startswith("f8") and call.reduction in ("avg", "mulsum"):
            raise UserError(
                "NCCL on a single rank does not scale 8-bit floats",
                got=f"-d {call.datatype.name} -o {call.reduction}",
                expected="two ranks or more, or another reduction",
                everywhere=True,
            )
        if call.reduction != "mulsum":
            return REDUCTIONS.index(call.reduction)
        known = call.datatype
        if known.name not in self._premultipliers:
            scalar = np.frombuffer(_scalar(known, premultiplier(self.rank)), np.uint8)
            with nccl.failures("creating the operator mulsum"):
                self._premultipliers[known.name] = self._nccl.red_op_create_pre_mul_sum(
                    scalar.ctypes.data, known.code, nccl.HOST_IMMEDIATE, self._handle
                )
        return self._premultipliers[known.name]

    def grouped(self, calls: Sequence[Function]) -> Function:
        return CallSequence((self._nccl.group_start, *_flat(calls), self._nccl.group_end))

    def packed(self, calls: Sequence[Function]) -> list[Function]:
        """The same calls, with consecutive library calls made from C."""
        parts = _flat(calls)
        if not BUILT:
            return parts
        made: list[Function] = []
        runs = itertools.groupby(parts, lambda part: _function(part) in nccl.addresses())
        for in_library, several in runs:
            made += [self._batch(several)] if in_library else several
        return made

    def _batch(self, parts: Iterable[Function]) -> Batch:
        addresses = nccl.addresses()
        calls = [(addresses[_function(part)], [int(word) for word in _arguments(part)]) for part in parts]
        return Batch(calls, self._nccl.NCCLError)

    def close(self) -> None:
        for operator in self._premultipliers.values():
            self._nccl.red_op_destroy(operator, self._handle)


def _flat(calls: Sequence[Function]) -> list[Function]:
    return [part for call in calls for part in (call.parts if isinstance(call, CallSequence) else (call,))]


def _function(part: Function) -> Callable[..., Any]:
    return part.func if isinstance(part, functools.partial) else part


def _arguments(part: Function) -> Sequence[Any]:
    return part.args if isinstance(part, functools.partial) else ()


def _nothing() -> None:
    pass


def _scalar(datatype: Datatype, value: int) -> bytes:
    """1 or 2 in the datatype's representation."""
    if not datatype.floating:
        return value.to_bytes(8, "little")
    bias = (1 << (datatype.exponent - 1)) - 1
    return ((bias + value.bit_length() - 1) << datatype.mantissa).to_bytes(8, "little")
