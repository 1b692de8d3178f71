"""CUDA kernels of files, for programs that may run without CuPy too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from meshrun.runner.errors import UserError, first_line


def kernel(path: Path, name: str, options: tuple[str, ...] = ()) -> Callable[..., None]:
    """Compile the kernel `name` (a template instance such as "convolve<float, float, float>") of a .cu file.

    Call the result with (grid, block, arguments, stream=...). options: of NVRTC, such as "-DWIDTH=4". Fused
    multiply-add is off unless an option turns it on, so that CPU and GPU round in the same way. Raises
    UserError without CuPy.
    """
    try:
        from meshrun.runner.device import cuda
    except ImportError as reason:
        raise UserError(
            "a CUDA kernel needs CuPy, which cannot be imported",
            why=first_line(reason),
            hint="pip install 'meshrun[cuda12]' for a CUDA 12 driver, 'meshrun[cuda13]' for CUDA 13",
        ) from reason
    return cuda.kernel(path, name, options)
