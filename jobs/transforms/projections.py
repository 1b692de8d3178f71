"""Checks a transform from its files, over all of its cells, without any FFT of arrays.

The transform is linear: along each axis a matrix M. So for any vectors r, one for each axis of the output,
the sum over the output of X times the product of the r equals the sum over the input of x times the product
of the M^T r, which are vectors too. With random r both sums see every cell, and a block that
is wrong, swapped or missing changes them: the idea of Freivalds' check of matrix products (R. Freivalds,
1977). With r = 1 at one index and 0 elsewhere, the sum over the input is the definition of one cell of the
output.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.plan.grid import bounds
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.transforms.plan import Real
from meshrun.runner.world.world import World

TILE = 1 << 21  # cells that a rank reads at a time
COUNTS = {"sample": (1, 3), "full": (4, 32)}  # sums with random vectors, and cells by the definition
DIRECT = 1 << 20  # terms up to which M^T r is summed directly; by the FFT of one vector beyond
SAFETY = 16.0  # times the expected error


@dataclass(frozen=True)
class Direction:
    """Which transform: the parameters of the job fft. length: cells of the last axis after it, if `real`."""

    axes: Shape
    inverse: bool
    real: Real
    norm: str
    length: int


def check_projections(
    world: World, source: Source, output: Source, direction: Direction, order: Sequence[int], mode: str
) -> dict[str, Any]:
    """Check the output, whose axes are in `order`, against the input; return the record. Collective.

    Raises RunError on every rank if a sum differs by more than its rounding error, or if an output with all
    its cells has not the input's energy (Parseval's theorem).
    """
    begin = time.perf_counter()
    shape = [0] * len(order)
    for place, axis in enumerate(order):
        shape[axis] = output.shape[place]
    random = np.random.default_rng(int(world.run_id, 16))
    spread, cells = COUNTS[mode]
    rows = [_random_vectors(random, shape, direction.real == "inverse") for _ in range(spread)]
    rows += [_unit_vectors(random, shape) for _ in range(cells)] if math.prod(shape) else []
    columns = [
        [
            _transposed(r, n, axis, direction)
            for axis, (r, n) in enumerate(zip(row, source.shape, strict=True))
        ]
        for row in rows
    ]
    expected, norm_in = _sums(world, source, columns)
    got, norm_out = _sums(world, output, [[row[axis] for axis in order] for row in rows])
    _check_finite(source, output, norm_in, norm_out)
    if direction.real == "inverse":
        expected = expected.real
    _compare(output, got, expected, spread, norm_out)
    if not direction.real:
        _compare_norms(source, output, direction, norm_in, norm_out)
    return {
        "mode": mode,
        "against": f"sums over the input: {spread} over all cells of the output, {cells} of one cell",
        "seed": world.run_id,
        "seconds": time.perf_counter() - begin,
    }


def _random_vectors(random: np.random.Generator, shape: Sequence[int], real: bool) -> list[HostArray]:
    """Return vectors of magnitude about 1: phases or, for a real output, numbers of either sign."""
    if real:  # phases would mix the real parts with what an inverse real transform ignores
        return [random.uniform(0.5, 1.5, n) * random.choice([-1.0, 1.0], n) for n in shape]
    return [np.exp(2j * np.pi * random.random(n)) for n in shape]


def _unit_vectors(random: np.random.Generator, shape: Sequence[int]) -> list[HostArray]:
    return [np.eye(1, n, int(random.integers(n)))[0] for n in shape]


def _transposed(vector: HostArray, length: int, axis: int, direction: Direction) -> HostArray:
    """Return M^T r for an axis whose input has `length` cells."""
    if axis not in direction.axes:
        return vector
    half = bool(direction.real) and axis == direction.axes[-1]
    n = direction.length if half and direction.inverse else length  # cells without the half
    sign = 1 if direction.inverse else -1
    scale = {"ortho": n**-0.5}.get(
        direction.norm, 1 / n if direction.inverse == (direction.norm == "backward") else 1
    )
    found = scale * _phases(vector, n, sign)[:length]
    if half and direction.inverse:
        # The other half is the conjugate of this one: each cell counts twice, but those that are their own
        # conjugates, of which the real part counts only.
        found = np.concatenate([found, np.zeros(max(length - n, 0))])[:length]
        used = n // 2 + 1
        weights = np.where(np.arange(length) < used, 2.0, 0.0)
        weights[0] = 1
        if n % 2 == 0 and n // 2 < length:
            weights[n // 2] = 1
        found = found * weights
    return np.asarray(found)


def _phases(vector: HostArray, n: int, sign: int) -> HostArray:
    """Return the sums over k of r[k] exp(sign 2 pi i k m / n), for m = 0 ... n - 1."""
    used = np.flatnonzero(vector)
    if n * len(used) > DIRECT:
        padded = np.concatenate([vector, np.zeros(n - len(vector))])
        return np.asarray(np.fft.fft(padded) if sign < 0 else n * np.fft.ifft(padded))
    roots = np.exp(sign * 2j * np.pi * np.arange(n) / n)
    # In whole numbers: k * m / n in floating point would lose what matters, its fraction.
    return np.asarray(roots[np.outer(np.arange(n), used) % n] @ vector[used])


def _sums(world: World, source: Source, rows: Sequence[Sequence[HostArray]]) -> tuple[HostArray, float]:
    """Return sums over the array of its cells times each product of vectors, and its 2-norm. Collective.

    The norm is not finite if a cell is not.
    """
    length, matrices = source.shape[0], [np.stack(vectors, axis=1) for vectors in zip(*rows, strict=True)]
    first, last = bounds(length, world.size, world.rank) if source.parallel else (0, length)
    if not source.parallel and world.rank:
        last = 0
    total, norm = np.zeros(len(rows), complex), 0.0
    inner = math.prod(source.shape[1:])
    step = max(TILE // max(inner, 1), 1)
    for start in range(first, last if inner else first, step):
        stop = min(start + step, last)
        region = Region((start, *(0 for _ in source.shape[1:])), (stop, *source.shape[1:]))
        cells = np.empty(region.shape, source.dtype)
        source.read(region, cells)
        wide = cells.astype(np.complex128 if cells.dtype.kind == "c" else np.float64)
        norm = math.hypot(norm, _norm(wide))
        if not math.isfinite(norm):
            break
        # One product along the last axis reads the cells once; then one sum after the other.
        if wide.ndim == 1:
            total += wide @ matrices[0][start:stop]
            continue
        part = wide.reshape(-1, wide.shape[-1]) @ matrices[-1]
        for axis in range(wide.ndim - 2, -1, -1):
            matrix = matrices[axis][start:stop] if axis == 0 else matrices[axis]
            part = np.einsum("amk,mk->ak", part.reshape(-1, len(matrix), len(rows)), matrix)
        total += part[0]
    gathered = world.control.allgather((total, norm))
    return np.sum([one for one, _ in gathered], axis=0), math.hypot(*(one for _, one in gathered))


def _norm(cells: HostArray) -> float:
    """Return the 2-norm, also where squares of cells are too large or too small for float64."""
    largest = float(abs(cells).max(initial=0))
    if largest == 0 or not math.isfinite(largest):
        return largest
    if largest < float(np.finfo(np.float64).tiny):
        return largest * math.sqrt(cells.size)  # more than it is: the smallest numbers have few digits
    return largest * float(np.linalg.norm(cells / largest))


def _check_finite(source: Source, output: Source, norm_in: float, norm_out: float) -> None:
    """Raise an error if sums over all cells cannot be compared."""
    if not math.isfinite(norm_in):
        raise UserError(
            f"{option('verify')} cannot check this transform: it compares sums over all cells of the input",
            got=f"cells of {source.path} that are not finite",
            expected="numbers",
            hint=f"run without {option('verify')}",
            everywhere=True,
        )
    if not math.isfinite(norm_out):
        raise RunError(
            "verification failed: cells of the transform are not finite",
            got=f"an overflow in {output.dtype}",
            expected="finite cells, of an input whose cells are",
            hint=f"a double-precision input, or {option('norm', 'forward')}",
            everywhere=True,
        )


def _compare(output: Source, got: HostArray, expected: HostArray, spread: int, norm: float) -> None:
    cells = max(math.prod(output.shape), 1)
    error = SAFETY * np.finfo(output.dtype).eps * max(math.log2(cells), 1)
    for number, (one, wanted) in enumerate(zip(got, expected, strict=True)):
        over_all = number < spread
        # Cells have independent errors, each relative to the root of the mean square of all cells.
        tolerance = error * (norm if over_all else norm / math.sqrt(cells))
        if not abs(one - wanted) <= max(tolerance, np.finfo(output.dtype).tiny):
            kind = "a sum over all cells" if over_all else "a cell"
            raise RunError(
                f"verification failed: {kind} of the transform is wrong",
                got=f"{one:.9g}",
                expected=f"{wanted:.9g}, within {tolerance:.3g}",
                everywhere=True,
            )


def _compare_norms(
    source: Source, output: Source, direction: Direction, norm_in: float, norm_out: float
) -> None:
    n = math.prod(source.shape[axis] for axis in direction.axes)
    power = {"ortho": 0.0}.get(
        direction.norm, -1.0 if direction.inverse == (direction.norm == "backward") else 1.0
    )
    wanted = norm_in * float(n) ** (power / 2)
    tolerance = SAFETY / 2 * float(np.finfo(output.dtype).eps) * max(math.log2(n), 1) * wanted
    if not abs(norm_out - wanted) <= max(tolerance, float(np.finfo(output.dtype).tiny)):
        raise RunError(
            "verification failed: the transform has not the input's energy (Parseval's theorem)",
            got=f"a root of {norm_out:.9g}",
            expected=f"{wanted:.9g}",
            everywhere=True,
        )
