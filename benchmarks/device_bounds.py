"""Bounds that transforms_device.py compares with: library calls on a rank's share, each alone.

Not a script. Each function allocates its arrays, and returns the call that is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrun.runner.comm.collectives.api import DATATYPES, Call, Pointer

Work = Callable[[], object]


def all_to_all(world: Any, nbytes: int) -> tuple[Work, Work]:
    """Return an all-to-all by NCCL, or MPI on CPUs, and what frees it. Collective.

    nbytes: of a rank's block, of which each rank gets an equal part, the sender too. The call is that of
    `meshrun bench collectives alltoall`: grouped sends and receives in memory of NCCL, on a communicator of
    its own.
    """
    group = world.collectives(world.control)
    send, receive = (Pointer(group.allocate(nbytes)) for _ in range(2))
    send.bytes(nbytes)[...] = 0
    world.backend.synchronize()
    call = group.bind(Call("alltoall", send, receive, nbytes // world.size, DATATYPES["uint8"]))

    def work() -> None:
        group.issue((call,))
        group.wait()

    return work, group.close


def transforms(world: Any, block: Any) -> Work:
    """Return the transforms of a rank's share of complex64 cells^3, along all axes.

    block: its planes, (planes, cells, cells). On a GPU plans of cuFFT are made here, and executed into memory
    that CuPy keeps: on one rank one plan of three axes; on several one of planes and one of rows. On a CPU
    the same by scipy.fft.
    """
    planes, cells = block.shape[:2]
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((cells, cells, cells), (0, 1, 2))]
    if world.size > 1:
        shapes = [((planes, cells, cells), (1, 2)), ((planes * cells, cells), (1,))]
    if world.backend.device.kind != "cuda":
        import scipy.fft

        return lambda: [scipy.fft.fftn(block.reshape(shape), axes=axes) for shape, axes in shapes]
    from cupy.cuda import cufft
    from cupyx.scipy.fft import get_fft_plan

    plans = [(get_fft_plan(block.reshape(shape), axes=axes), shape) for shape, axes in shapes]

    def work() -> None:
        out = world.xp.empty_like(block)
        for plan, shape in plans:
            plan.fft(block.reshape(shape), out.reshape(shape), cufft.CUFFT_FORWARD)

    return work


def product(world: Any, precision: str, a: Any, b: Any) -> Work:
    """Return cuBLAS's product, NumPy's on CPUs, of factors that are stored as it multiplies them.

    a: a rank's rows; b: whole; both C-contiguous. bfloat16: their bits, uint16.
    """
    if world.backend.device.kind != "cuda":
        return lambda: a @ b
    from meshrun.runner.device.raw.blas import gemm

    sums = "float64" if precision == "float64" else "float32"
    out = world.xp.empty((a.shape[0], b.shape[1]), sums)
    sizes = (a.shape[0], b.shape[1], b.shape[0])

    def work() -> None:
        stream = world.xp.cuda.get_current_stream()
        gemm(precision, sizes, (a.data.ptr, b.data.ptr, out.data.ptr), stream, sums=sums)

    return work
