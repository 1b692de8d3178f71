"""CUDA C++ kernels, one concept a file, and how they are launched."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import runner

FOLDER = Path(__file__).parent
# The C++ type of each dtype that kernels read, compute in or write.
CTYPE = {
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
}

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


def load(file: str, instance: str, options: tuple[str, ...] = ()) -> Callable[..., None]:
    """The compiled `instance` of a kernel in `file`, a .cu file of this folder."""
    return runner.kernel(FOLDER / file, instance, (_headers(), *options))


@functools.cache
def _headers() -> str:
    # CuPy's cache of compiled kernels does not look into included files: let the key change with them.
    return f"-DHEADERS={zlib.crc32((FOLDER / 'common.cuh').read_bytes())}u"


def launch(
    file: str,
    instance: str,
    blocks: int,
    threads: int,
    arguments: Sequence[Any],
    options: tuple[str, ...] = (),
) -> None:
    """Launch a kernel on a one-dimensional grid, on the current stream.

    Arguments are device arrays and NumPy scalars of the parameters' exact types.
    """
    load(file, instance, options)((blocks,), (threads,), tuple(arguments))
