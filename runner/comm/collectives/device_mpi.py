"""Collectives in device memory through CUDA-aware MPI: those of `mpi`, on a GPU's buffers.

A library that is not CUDA-aware reads a device address as a host address and ends the process. So the library
is asked first, and then has to carry messages whose bytes are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collective_call import gather_calls
from meshrun.runner.comm.collectives.api import Call, Function
from meshrun.runner.comm.collectives.host import AlignedBuffer, Scratch, in_turn
from meshrun.runner.comm.collectives.mpi import NATIVE, MpiCollectives
from meshrun.runner.comm.mpi import device_memory_support
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.spelling import command_option

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
PROOFS = (64, 1 << 22)  # bytes: libraries send short and long messages in different ways
HINTS = {  # by the beginning of the library's name
    "Open MPI": "an Open MPI configured --with-cuda (ompi_info --all | grep built_with_cuda_support)",
    "MPICH": "an MPICH configured --with-cuda, MPIR_CVAR_ENABLE_GPU=1; on Cray MPICH_GPU_SUPPORT_ENABLED=1",
    "MVAPICH": "MVAPICH-Plus, or MVAPICH2-GDR with MV2_USE_CUDA=1",
}
OTHER_HINT = "the site's CUDA-aware MPI"


class DeviceMpiCollectives(MpiCollectives):
    """One rank of a group. backend: of this rank's GPU.

    Raises UserError, on every rank, unless every rank's MPI says that it takes device memory; RunError if a
    message arrives wrong.
    """

    def __init__(self, control: Control, backend: Backend) -> None:
        super().__init__(control)
        self._backend = backend
        require_support(control)
        self.scratch = Scratch(self.allocate)
        self.label = f"CUDA-aware MPI, device memory ({self.control.library})"
        self._prove()

    def allocate(self, nbytes: int) -> AlignedBuffer:
        return AlignedBuffer(self._backend.empty((nbytes,), np.dtype(np.uint8)))

    def bind(self, call: Call) -> Function:
        reduces = call.operation in REDUCING
        own = call.reduction in ("avg", "mulsum") or call.datatype.name not in NATIVE
        if reduces and (own or (call.datatype.itemsize == 1 and call.reduction == "sum")):
            raise UserError(
                "MPI does not reduce this in device memory",
                got=f"-d {call.datatype.name} -o {call.reduction}",
                expected="a type of 4 or 8 bytes, and sum, prod, max or min",
                hint=command_option("transport", "nccl"),
                everywhere=True,
            )
        steps: list[Function] = getattr(self, f"_{call.operation}")(call)
        return self._ordered(steps)

    def _ordered(self, steps: Sequence[Function]) -> Function:
        """Wait for the device after each of several steps: MPI does not wait for its copies."""
        if len(steps) == 1:
            return steps[0]
        return in_turn(list(chain.from_iterable((step, self._backend.synchronize) for step in steps)))

    def _prove(self) -> None:
        """Send messages around the ring of ranks and compare every byte."""
        found = self.control.allgather([self._arrives(nbytes) for nbytes in PROOFS])
        for rank, sizes in enumerate(found):
            if not all(sizes):
                nbytes = PROOFS[sizes.index(False)]
                raise RunError(
                    "this MPI says that it takes device memory, and a message arrived wrong",
                    got=f"{self.control.library}: {nbytes} bytes at rank {rank} of the group",
                    hint=command_option("transport", "nccl"),
                    everywhere=True,
                )

    def _arrives(self, nbytes: int) -> bool:
        send, recv = self.allocate(nbytes), self.allocate(nbytes)
        before = (self.rank - 1) % self.size
        sent, expected, got = (self._backend.host_empty((nbytes,), np.dtype(np.uint8)) for _ in range(3))
        for host, rank in ((sent, self.rank), (expected, before), (got, self.rank)):
            host[...] = (np.arange(nbytes) * 7 + 31 * rank) % 251
        self._backend.upload(sent, send.array)
        self._backend.upload(got, recv.array)
        self._backend.synchronize()
        parts = [[self._mpi.buffer.frombuffer(one.array), self._mpi.BYTE] for one in (send, recv)]
        self._comm.Sendrecv(parts[0], (self.rank + 1) % self.size, 0, parts[1], before, 0)
        self._backend.download(recv.array, got)
        self._backend.synchronize()
        return bool((got == expected).all())


def require_support(control: Control) -> None:
    """Raise UserError on every rank unless every rank's MPI says that it takes device memory. Collective."""
    answers = gather_calls(control, device_memory_support, f"rank {control.rank}")
    for rank, (takes, said) in enumerate(answers):
        if not takes:
            wanted = next((hint for name, hint in HINTS.items() if said.startswith(name)), OTHER_HINT)
            raise UserError(
                "this MPI does not take device memory",
                got=f"{said}, on rank {rank} of the group",
                expected="a CUDA-aware MPI",
                hint=f"{wanted}, with mpi4py built for it (pip install --no-binary mpi4py mpi4py); or "
                f"{command_option('transport', 'nccl')}",
                everywhere=True,
            )
