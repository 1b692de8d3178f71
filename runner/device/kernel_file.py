"""CUDA kernels of files, for programs that may run without CuPy too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from meshrun.runner.errors import UserError, first_line


def kernel(path: Path, name: str, options: tuple[str, ...] = ()) -> Callable[..., None]:
    """Compile a kernel of a .cu file for this rank's GPU.

    Fused multiply-add is off unless an option turns it on, so that CPU and GPU round in the same way.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        The kernel's name, or an instance of a template such as "convolve<float, float, float>".
    options : tuple of str
        Options of NVRTC, such as "-DWIDTH=4".

    Returns
    -------
    callable
        Call it with (grid, block, arguments, stream=...).

    Raises
    ------
    UserError
        Without CuPy.

    Examples
    --------
    >>> scale = meshrun.kernel(Path("scale.cu"), "scale<float>")
    >>> scale((blocks,), (256,), (u, np.float32(2), u.size), stream=here.stream)
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
