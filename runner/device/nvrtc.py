"""Compile CUDA C++ for the current GPU, and keep the binaries in the user's cache.

CuPy's RawModule is not used: it sets -ftz=true, with which numbers below 2^-126 are zero on a GPU only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cupy
from cupy.cuda import compiler

from meshrun.runner.system import cached_files
from meshrun.runner.system.cached_files import cache_folder

SHARED_BYTES = 48 << 10  # of a block; more needs funcSetAttribute
LOCAL_BYTES = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
NUM_REGS = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def compile_kernel(source: str, name: str, options: tuple[str, ...], shared: int = 0) -> Callable[..., None]:
    """Compile the kernel `name` of a text for the current device, or load it from the cache.

    name: of a function or of an instance of a template. shared: bytes of dynamic shared memory of a block.
    """
    options = ("-std=c++17", *options, *(f"-I{folder}" for folder in _headers()))
    device = cupy.cuda.Device()
    words = (source, name, *options, device.compute_capability, str(cupy.cuda.nvrtc.getVersion()))
    path = cached_files.path_of(cache_folder(), words, ".cubin")
    kept = cached_files.read(path)
    if kept is None:
        binary, names = compiler.compile_using_nvrtc(source, options, None, "kernel.cu", (name,))
        binary = binary.encode() if isinstance(binary, str) else binary
        kept = names[name].encode() + b"\0" + binary
        cached_files.keep(path, kept)
    mangled, _, binary = kept.partition(b"\0")
    module = cupy.cuda.function.Module()
    module.load(binary)
    function = module.get_function(mangled.decode())
    if shared > SHARED_BYTES:
        cupy.cuda.driver.funcSetAttribute(function.ptr, MOST_SHARED, shared)
    launch: Callable[..., None] = function
    return launch


def registers_of(kernel: Any) -> int:
    """Return the number of 32-bit registers that a thread of a compiled kernel uses."""
    count: int = cupy.cuda.driver.funcGetAttribute(NUM_REGS, kernel.ptr)
    return count


def local_bytes_of(kernel: Any) -> int:
    """Return the bytes of local memory of a thread of a compiled kernel: registers spilled, and arrays."""
    size: int = cupy.cuda.driver.funcGetAttribute(LOCAL_BYTES, kernel.ptr)
    return size


@functools.cache
def _headers() -> tuple[Path, ...]:
    """Return the folders of CUDA's headers, such as cuda_fp16.h, of the toolkit and of its wheels."""
    found = []
    toolkit = cupy.cuda.get_cuda_path()
    if toolkit is not None:
        found.append(Path(toolkit) / "include")
    wheels = find_spec("nvidia")
    for place in (wheels.submodule_search_locations or ()) if wheels else ():
        found += sorted(path.parent for path in Path(place).glob("*/include/cuda_fp16.h"))
    return tuple(folder for folder in found if (folder / "cuda_fp16.h").is_file())
