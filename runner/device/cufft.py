"""Plans of cuFFT on the current GPU, of which a function of ours may store each element of the result."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupy.cuda import cufft

from meshrun.runner.errors import RunError, first_line
from meshrun.runner.region import Array, Shape

KINDS = {8: cufft.CUFFT_C2C, 16: cufft.CUFFT_Z2Z}  # by bytes of a complex number


@dataclass(frozen=True)
class StoreFunction:
    """A __device__ function that cuFFT's last kernel calls instead of storing (cufftXtSetJITCallback).

    path: of its text. name: a macro in the text, where the function's name stands. options: for NVRTC, such
    as "-DN=3".
    """

    path: Path
    name: str
    options: tuple[str, ...]


def complex_plan(
    shape: Shape,
    batch: int,
    strides: tuple[int, int],
    distance: int,
    dtype: np.dtype[Any],
    inverse: bool,
    store: StoreFunction | None = None,
) -> Callable[[Array, Array], None]:
    """Return what transforms from one array to another, on the current stream, without dividing.

    shape: cells of a transform, contiguous if there are several axes. batch: number of transforms. strides:
    elements from a cell to the next along the last axis, in both arrays. distance: from a transform to the
    next. dtype: complex64 or complex128. store: gets the results. Raises RunError if this CuPy, cuFFT or
    NVRTC takes no such function.
    """
    source, out = ((shape, stride, distance) for stride in strides)
    words = (shape, *source, *out, KINDS[dtype.itemsize], batch, "C", len(shape) - 1, None)
    plan = cufft.PlanNd(*words) if store is None else _storing_plan(words, KINDS[dtype.itemsize], store)
    direction = cufft.CUFFT_INVERSE if inverse else cufft.CUFFT_FORWARD
    return lambda source, out: plan.fft(source, out, direction)


def line_batches(
    length: int,
    cells: tuple[int, int],
    strides: tuple[int, int],
    batch: int,
    distances: tuple[int, int],
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    inverse: bool,
) -> Callable[[Array, Array], None]:
    """Return what transforms a batch of lines from one array to another, without dividing.

    length: of the transform. cells: of a line, in the source and in the result; strides, distances: elements
    from a cell to the next, and from a line to the next, likewise. dtypes: of the source and of the result;
    one of them may be real.
    """
    double = max(one.itemsize for one in dtypes) == np.dtype(np.complex128).itemsize
    if dtypes[0].kind == "f":
        kind = cufft.CUFFT_D2Z if double else cufft.CUFFT_R2C
    elif dtypes[1].kind == "f":
        kind = cufft.CUFFT_Z2D if double else cufft.CUFFT_C2R
    else:
        kind = cufft.CUFFT_Z2Z if double else cufft.CUFFT_C2C
    source, out = (((n,), *steps) for n, *steps in zip(cells, strides, distances, strict=True))
    plan = cufft.PlanNd((length,), *source, *out, kind, batch, "C", 0, None)
    direction = cufft.CUFFT_INVERSE if inverse else cufft.CUFFT_FORWARD
    return lambda source, out: plan.fft(source, out, direction)


def _storing_plan(words: tuple[Any, ...], kind: int, store: StoreFunction) -> Any:
    # The name has the constants in it, in case cuFFT keeps what it has linked by name.
    name = f"{store.name.lower()}_{zlib.crc32(' '.join(store.options).encode()):x}"
    try:
        with cupy.fft.config.set_cufft_callbacks(
            cb_store=store.path.read_text(),
            cb_store_name=name,
            cb_ver="jit",
            nvrtc_options=(f"-D{store.name}={name}", *store.options),
        ):
            manager = cupy.fft.config.get_current_callback_manager()
            return manager.create_plan(manager.set_callbacks(kind), ("PlanNd", words))
    except (TypeError, RuntimeError, cupy.cuda.compiler.CompileException) as reason:
        raise RunError(f"cuFFT takes no function that stores: {first_line(reason)}") from reason
