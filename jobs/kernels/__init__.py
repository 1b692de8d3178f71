"""CUDA C++ kernels, one concept a file, and how they are launched.

Each file says what limits its kernel and what rate it reaches. It knows neither ranks nor jobs. Others use
`load`, `launch` and `instance`.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import meshrun

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.job")

FOLDER = Path(__file__).parent
# The C++ type of each dtype that kernels read, compute in or write.
CTYPE = {
    "bool": "Bool",
    "int8": "signed char",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "int16": "short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "__half",
    "float32": "float",
    "float64": "double",
    "bfloat16": "__nv_bfloat16",
    "void128": "Wide",  # of meshrun.jobs.filters.dtypes.WIDE
}
# The instance for float32 of kernels with more template parameters than the type of elements.
FLOAT32 = {
    "transpose_vectorised": "transpose_vectorised<float, 4, 32, 16, 32, false>",
    "matmul_naive": "matmul_naive<float, float>",
    "matmul_tiled": "matmul_tiled<float, float>",
    "matmul_register": "matmul_register<true>",
}
FUSED = ("matmul_naive", "matmul_tiled", "matmul_register")  # their sums are of fused multiply-adds

MOST_BLOCKS = 2**31 - 1  # of a one-dimensional grid; the other two dimensions hold 65535 only


def instance(name: str, *arguments: np.dtype[Any] | str | int) -> str:
    """A template instance's name: instance("copy", "uint8", 4) -> "copy<unsigned char, 4>"."""
    words = [
        str(argument) if isinstance(argument, int) else CTYPE[np.dtype(argument).name]
        for argument in arguments
    ]
    return f"{name}<{', '.join(words)}>"


def address(array: Any) -> int:
    """Where a device array's first element is: vector accesses ask for more than an element's alignment."""
    pointer: int = array.data.ptr
    return pointer


def load(
    file: str, instance: str | None = None, options: tuple[str, ...] | None = None
) -> Callable[..., None]:
    """A kernel of this folder, for the current GPU; call it with (grid, block, arguments, stream=...).

    file: such as "transpose_tiled"; .cu may be left out. instance: of the template in it, such as
    "transpose_tiled<double>"; otherwise the one for float32. options: for the compiler; otherwise those
    that the kernel is meant for. Arguments are CuPy arrays, or addresses as np.uint64, and NumPy scalars
    of the parameters' exact types.

    Transposes of a C-contiguous (rows, columns); 256 threads; input, output, np.int64 rows, columns:

        kernel                  blocks                                       limits
        transpose_naive         ceil(rows / 8) * ceil(columns / 32)
        transpose_tiled         ceil(rows / 32) * ceil(columns / 32)
        transpose_vectorised    ceil(rows / 128) * ceil(columns / 64)        rows and columns multiples of 4,
                                                                             addresses of 16 bytes

    Products (m, k) x (k, n), C-contiguous; a, b, out, np.int64 m, n, k:

        matmul_naive            ceil(m / 8) * ceil(n / 32), 256 threads
        matmul_tiled            ceil(m / 32) * ceil(n / 32), 1024 threads
        matmul_register         ceil(m / 128) * ceil(n / 128), 256 threads   n and k multiples of 4,
                                                                             addresses of 16 bytes

    For example, of a CuPy array `a` of 1000 x 300 float32:

        load("transpose_tiled")((32 * 10,), (256,), (a, out, np.int64(1000), np.int64(300)))
    """
    name = file.removesuffix(".cu")
    if instance is None:
        instance = FLOAT32.get(name, f"{name}<float>")
    if options is None:
        options = ("--fmad=true",) if name in FUSED else ()
    return meshrun.kernel(FOLDER / f"{name}.cu", instance, (_headers(), *options))


@functools.cache
def _headers() -> str:
    # CuPy's cache of compiled kernels does not look into included files: let the key change with them.
    headers = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.cuh")))
    return f"-DHEADERS={zlib.crc32(headers)}u"


def launch(
    file: str,
    instance: str,
    blocks: int,
    threads: int,
    arguments: Sequence[Any],
) -> None:
    """Launch a kernel on a one-dimensional grid, on the current stream.

    Arguments are device arrays and NumPy scalars of the parameters' exact types.
    """
    load(file, instance, ())((blocks,), (threads,), tuple(arguments))
