"""Bind a rank to its device, and open what exchanges arrays of that device."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from meshrun.runner.comm.api import Arrays, Control
from meshrun.runner.comm.checksum.checked import CheckedControl
from meshrun.runner.comm.checksum.sums import sums_of
from meshrun.runner.comm.collectives.api import Collectives, NcclTuning
from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.device.api import Backend, Device
from meshrun.runner.errors import UserError, first_line
from meshrun.runner.options.choices import DEVICES
from meshrun.runner.spelling import command_option, option

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import PeerArrays


def visible_gpus(choice: str) -> int:
    """The number of GPUs that this process may use: 0 for "cpu".

    UserError for "cuda" if there is none, and for a word that is no `DeviceChoice`.
    """
    if choice not in DEVICES:
        raise UserError("there is no such device", got=repr(choice), expected=", ".join(DEVICES))
    if choice == "cpu":
        return 0
    try:
        from meshrun.runner.device import cuda
    except ImportError as reason:
        return _without_cupy(reason, required=choice == "cuda")
    visible = cuda.count()
    if choice == "cuda" and not visible:
        raise UserError(
            f"{option('device', 'cuda')}, but CUDA finds no GPU",
            hint="nvidia-smi (driver, CUDA_VISIBLE_DEVICES, the container's GPU option), or "
            f"{option('device', 'cpu')}",
        )
    return visible


def _without_cupy(reason: ImportError, required: bool) -> int:
    hint = "pip install 'meshrun[cuda12]' for a CUDA 12 driver, 'meshrun[cuda13]' for CUDA 13"
    words = first_line(reason)
    if required:
        raise UserError(
            f"{option('device', 'cuda')}, but CuPy cannot be imported", why=words, hint=hint
        ) from reason
    if os.path.exists("/dev/nvidia0"):
        print(
            f"meshrun: there is a GPU, but CuPy cannot be imported ({words}): using the CPU. {hint}",
            file=sys.stderr,
        )
    return 0


def bind_device(
    control: Control,
    visible: Sequence[int],
    local: int,
    local_size: int,
    oversubscribe: bool,
    later: bool = False,
) -> Backend:
    """This rank's back end, where rank i sees visible[i] GPUs; the CPU only if no rank sees a GPU.

    later: do not load NCCL yet.
    """
    if not any(visible):
        from meshrun.runner.device.cpu import CpuBackend

        return CpuBackend()
    mine = visible[control.rank]
    if mine == 0:
        raise UserError(
            f"this rank sees no GPU, rank {visible.index(max(visible))} does",
            hint=f"CUDA_VISIBLE_DEVICES and nvidia-smi on this host, or {option('device', 'cpu')} for all",
        )
    if control.size > 1 and not (oversubscribe or later):
        from meshrun.runner.comm import nccl

        nccl.load()
    index = choose_gpu(mine, local, local_size, oversubscribe)
    from meshrun.runner.device.cuda import CudaBackend

    return CudaBackend(index)


def choose_gpu(visible: int, local: int, local_size: int, oversubscribe: bool) -> int:
    """The device index for local rank `local` of `local_size`, which sees `visible` GPUs.

    If it sees all GPUs: its local rank. If it sees one: device 0, which the launcher has bound
    (srun's --gpus-per-task). Any other number is a UserError, because it is probably a mistake.
    """
    if visible == 1 or visible >= local_size:
        return 0 if visible == 1 else local
    if oversubscribe:
        return local % visible
    raise UserError(
        "more ranks than GPUs on this host",
        got=f"{local_size} ranks, {visible} GPUs visible",
        expected="a GPU for each rank",
        hint=f"{option('ranks', visible)}, or {option('oversubscribe', True)} to share",
    )


def open_arrays(
    control: Control,
    backend: Backend,
    shared_gpu: bool,
    *,
    later: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Arrays:
    """The communicator for device arrays: NCCL, or host memory if ranks share a GPU.

    later, variables: as of `NcclComm`.
    """
    if backend.device.kind == "cpu" or control.size == 1:
        return control
    if isinstance(control, CheckedControl):
        return control.checked(open_arrays(control.control, backend, shared_gpu), sums_of(backend))
    if shared_gpu:
        from meshrun.runner.comm.staged import StagedComm

        return StagedComm(control, backend)
    from meshrun.runner.comm.nccl_transfers import NcclComm

    return NcclComm(control, later=later, variables=variables, backend=backend)


def open_peers(control: Control, devices: Sequence[Device]) -> PeerArrays | str:
    """Return GPU memory of the ranks that the others can open, or the first reason why there is none.

    devices: of each rank, GPUs of one host. The same on every rank. Collective.
    """
    from meshrun.runner.comm.peer_arrays import PeerArrays

    peers = PeerArrays(control, devices)
    problem = next(filter(None, control.allgather(peers.problem())), None)
    return problem or peers


def open_collectives(
    group: Control,
    backend: Backend,
    cta_policy: int | None,
    peers: int | None,
    stream: Literal["main", "null", "own"],
    tuning: NcclTuning | None,
    transport: Literal["nccl", "mpi"] | None,
) -> Collectives:
    """Collectives on raw memory among a group's ranks, each on its device; transport: None for the default.

    Raises UserError if there is no such transport here.
    """
    if isinstance(group, CheckedControl):
        raise UserError(
            f"{option('checksum')} does not check collectives on raw memory",
            got="World.collectives",
            hint="World.all_reduce and the other methods of World, which are checked",
            everywhere=True,
        )
    if transport == "mpi" and isinstance(group, ThreadComm):
        raise UserError(
            f"{command_option('transport', 'mpi')}: this process runs without MPI",
            hint="meshrun -n 2",
            everywhere=True,
        )
    if transport == "nccl" and backend.device.kind != "cuda":
        raise UserError(
            f"{command_option('transport', 'nccl')}: NCCL carries device memory only",
            got="a rank that measures host memory",
            hint=f"{command_option('transport', 'mpi')}, or {option('device', 'cuda')}",
            everywhere=True,
        )
    if transport == "mpi" and backend.device.kind == "cuda":
        from meshrun.runner.comm.collectives.device_mpi import DeviceMpiCollectives

        return DeviceMpiCollectives(group, backend)
    if backend.device.kind == "cuda":
        from meshrun.runner.comm.collectives.nccl import NcclCollectives

        given = {"main": backend.stream, "null": backend.null_stream}
        chosen = backend.new_stream() if stream == "own" else given[stream]
        return NcclCollectives(group, chosen, cta_policy=cta_policy, peers=peers, tuning=tuning)
    if isinstance(group, ThreadComm):
        from meshrun.runner.comm.collectives.threads import ThreadCollectives

        return ThreadCollectives(group)
    from meshrun.runner.comm.collectives.mpi import MpiCollectives

    return MpiCollectives(group)
