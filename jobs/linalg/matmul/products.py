"""Products on one rank: by NumPy's BLAS on a CPU, by cuBLAS on a GPU.

Rows of a matrix have no gaps between their elements; rows of the first factor and of the result may have gaps
between them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np

from meshrun.jobs.kernels import address, instance, launch
from meshrun.jobs.linalg.matmul.plan import ROWS
from meshrun.jobs.linalg.matmul.precision import Precision
from meshrun.runner.device.api import Backend
from meshrun.runner.device.host_blas import add_product, adds_products, at_most_blas_threads
from meshrun.runner.region import Array
from meshrun.runner.world.world import World

PARTS = 2  # in which a GPU multiplies, so that a message's kernel need not wait for the whole product
LEAST = 1024  # rows of such a part
THREADS, DEPTH = 256, 4  # of round_bfloat16.cu: of a block, and accesses of a thread


class Products(Protocol):
    """Converts factors to a precision, and multiplies them."""

    precision: Precision

    def stored(self, array: Array) -> Array:
        """Return a factor as it is multiplied: C-contiguous, of dtype `precision.stored`."""

    def store(self, array: Array, out: Array) -> None:
        """Fill `out`, C-contiguous of dtype `precision.stored`, with a factor as it is multiplied."""

    def multiply(self, a: Array, b: Array, out: Array, *, add: bool = False) -> None:
        """Set `out` to a b, or add a b to it. b: C-contiguous. out: of dtype `precision.sums`."""

    def rounded(self, sums: Array) -> Array:
        """Return sums as the result's dtype: the same array if that is the dtype of the sums."""


class NumpyProducts:
    """between: called between two parts of a product, for messages that need the processor."""

    def __init__(
        self, precision: Precision, backend: Backend, between: Callable[[], None] = lambda: None
    ) -> None:
        self.precision, self.backend, self.between = precision, backend, between
        self._part: Array | None = None  # of a product that no BLAS adds in place

    def stored(self, array: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.precision.factor(array), self.precision.stored)

    def store(self, array: Array, out: Array) -> None:
        with np.errstate(over="ignore"):
            out[...] = self.precision.factor(array)

    def multiply(self, a: Array, b: Array, out: Array, *, add: bool = False) -> None:
        in_place = adds_products(self.precision.sums)
        with np.errstate(all="ignore"):  # infinities propagate
            for first in range(0, a.shape[0], ROWS):
                rows = slice(first, first + ROWS)
                if add and in_place:
                    add_product(a[rows], b, out[rows])
                elif add:
                    out[rows] += np.matmul(a[rows], b, out=self._part_like(out[rows]))
                else:
                    np.matmul(a[rows], b, out=out[rows])
                self.between()

    def _part_like(self, sums: Array) -> Array:
        if self._part is None or self._part.size < sums.size:
            self._part = self.backend.empty((sums.size,), np.dtype(sums.dtype))
        return self._part[: sums.size].reshape(sums.shape)

    def rounded(self, sums: Array) -> Array:
        with np.errstate(over="ignore"):
            return sums.astype(self.precision.result, copy=False)


class CudaProducts:
    def __init__(self, precision: Precision, backend: Backend) -> None:
        self.precision, self.backend = precision, backend

    def stored(self, array: Array) -> Array:
        if self.precision.name != "bfloat16":
            return self.backend.xp.ascontiguousarray(array, self.precision.stored)
        out = self.backend.empty(array.shape, self.precision.stored)
        self.store(array, out)
        return out

    def store(self, array: Array, out: Array) -> None:
        if self.precision.name != "bfloat16":
            out[...] = array
        elif array.flags.c_contiguous or (array.strides[1] == array.itemsize and array.strides[0] > 0):
            round_bfloat16(array, out)
        else:
            for first in range(0, array.shape[0], LEAST):  # in parts, whose copies take little memory
                part = self.backend.xp.ascontiguousarray(array[first : first + LEAST])
                round_bfloat16(part, out[first : first + LEAST])

    def multiply(self, a: Array, b: Array, out: Array, *, add: bool = False) -> None:
        (rows, length), columns = a.shape, b.shape[1]
        if 0 in out.shape:
            return
        if length == 0:
            if not add:
                out.fill(0)
            return
        step = max(-(-rows // PARTS), LEAST)
        for first in range(0, rows, step):
            part, target = a[first : first + step], out[first : first + step]
            if self.precision.exact:
                product = self.backend.xp.matmul(part, b)
                target[...] = target + product if add else product
                continue
            from meshrun.runner.device.raw.blas import gemm

            gemm(
                self.precision.name,
                (part.shape[0], columns, length),
                (part.data.ptr, b.data.ptr, target.data.ptr),
                self.backend.xp.cuda.get_current_stream(),
                add=add,
                sums=self.precision.sums.name,
                lda=_pitch(a),
                ldc=_pitch(out),
            )

    def rounded(self, sums: Array) -> Array:
        return sums.astype(self.precision.result, copy=False)


def _pitch(matrix: Array) -> int:
    """Return the elements from one row to the next."""
    rows, columns = matrix.shape
    return int(matrix.strides[0] // matrix.itemsize if rows > 1 else columns)


def round_bfloat16(array: Array, out: Array) -> None:
    """Round the numbers of a matrix to bfloat16, half to even, in one pass on the current GPU.

    array: of any real dtype but float128; its rows have no gaps. out: their bits, uint16, C-contiguous, of
    the same shape.
    """
    if not array.size:
        return
    aligned = address(array) % min(4 * array.itemsize, 16) == 0 and address(out) % 8 == 0
    columns = pitch = array.size
    if not array.flags.c_contiguous:
        columns, pitch = array.shape[1], _pitch(array)
        aligned &= columns % 4 == pitch % 4 == 0
    together = 4 if aligned else 1
    blocks = -(-array.size // (together * THREADS * DEPTH))
    name = instance("round_bfloat16", array.dtype, together)
    numbers = (np.int64(array.size), np.int64(columns), np.int64(pitch))
    launch("round_bfloat16.cu", name, blocks, THREADS, (array, out, *numbers))


def share_of_cores(world: World) -> AbstractContextManager[None]:
    """Have this rank's products use its share of the host's cores; on a GPU, nothing."""
    if world.backend.xp is not np:
        return nullcontext()
    return at_most_blas_threads(world.cores)


def open_products(
    backend: Backend, precision: Precision, between: Callable[[], None] = lambda: None
) -> Products:
    """Return what multiplies on a rank's device."""
    if backend.xp is np:
        return NumpyProducts(precision, backend, between)
    return CudaProducts(precision, backend)
