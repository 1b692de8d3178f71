"""Check whether C is A B from the files, in O(n^2): compare C x with A (B x) for random vectors x.

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. The elements of x are +s
or -s at random, s a power of two for each column of B. If an element of C differs from the right value by
more than its row's tolerance t allows, at most one of the two signs of its column keeps the row's difference
within t, whatever the other signs are: one vector misses it with a probability of at most 1/2, v vectors with
at most 2^-v. Integers are compared exactly, modulo the range of their dtype, with elements 0 and 1: the same
argument holds with t = 0.

Tolerance: errors of a row have random signs in C x and add up to less than 8 times their 2-norm, except for
one row in 10^13 (W. Hoeffding, 1963); that norm is at most the bound of one element (`Precision.bound`),
relative to |a| |b|, times |a| r, where r has the 2-norms of B's rows, scaled like x. Storing the sums in a
shorter dtype adds the same of the rounding of C.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.jobs.linalg.matmul.precision import Precision, choose
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.plan.grid import bounds
from meshrun.runner.region import HostArray, Region
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World

VECTORS = {"sample": 20, "full": 60}
DEVIATIONS = 8.0
PART = 32 << 20  # bytes of rows in memory at a time
CELLS = 1000  # overflows that each rank computes again
DOUBLE = 2.0**-53


@dataclass(frozen=True)
class WrongRow:
    """A row of C whose difference is too large. element: of an overflow that is none."""

    row: int
    difference: float
    tolerance: float
    element: int | None = None


def check_product(
    world: World, inputs: Sequence[Source], output: Source, mode: str, *, precision: str
) -> dict[str, Any]:
    """Check the product in `output`; return the record of the check. Collective.

    Raises RunError on every rank, with the first wrong row, if C is not A B. Rows of A and columns of B with
    a value that is not finite are left out, and so are rows of C that overflow where they may. Raises
    UserError if nothing is left.
    """
    begin = time.perf_counter()
    gpu = world.backend.device.kind == "cuda"
    rounding = choose(inputs[0].dtype, inputs[1].dtype, precision, gpu=gpu)
    check = _Check(world, inputs, output, rounding, VECTORS[mode])
    wrong, seen = check.exact() if rounding.exact else check.rounded()
    found = world.control.allgather((wrong, seen))
    first = next((one for one, _ in found if one is not None), None)
    if first is not None:
        where = "" if first.element is None else f", column {first.element}"
        raise RunError(
            f"verification failed: row {first.row}{where} of the product is wrong",
            got=f"a difference of {first.difference:.6g}" if first.element is None else "an overflow",
            expected=f"at most {first.tolerance:.6g}",
            hint=f"meshrun selftest; run again with {option('device', 'cpu')} to compare",
            everywhere=True,
        )
    if sum(world.control.allgather(check.judged)) == 0 < check.rows or check.kept == 0 < check.columns:
        raise UserError(
            f"{option('verify')} cannot check this product: no row or no column of it is of numbers only",
            got=f"factors {inputs[0].path} and {inputs[1].path} with values that are not finite",
            expected="numbers",
            hint=f"run without {option('verify')}",
            everywhere=True,
        )
    compared = sum(seen for _, seen in found)
    left_out = "".join(
        f", {every - some:,} {name} not finite"
        for name, some, every in (("rows", compared, check.rows), ("columns", check.kept, check.columns))
        if some < every
    )
    return {
        "mode": mode,
        "against": f"A (B x) for {VECTORS[mode]} random x, which miss a wrong element with a probability "
        f"of at most 2^-{VECTORS[mode]} (Freivalds){left_out}",
        "vectors": VECTORS[mode],
        "rows": compared,
        "seed": world.run_id,
        "seconds": time.perf_counter() - begin,
    }


class _Check:
    """The files as matrices, and this rank's parts of them.

    judged: this rank's rows whose factors are finite: they are compared, or overflow where they may. kept:
    columns that are compared.
    """

    def __init__(
        self, world: World, inputs: Sequence[Source], output: Source, precision: Precision, vectors: int
    ) -> None:
        self.world, self.precision, self.vectors = world, precision, vectors
        self.a, self.b = inputs
        self.c = output
        self.rows = self.a.shape[0] if len(self.a.shape) == 2 else 1
        self.length = self.a.shape[-1]
        self.columns = self.b.shape[1] if len(self.b.shape) == 2 else 1
        self.judged, self.kept = 0, self.columns
        # Host arrays: the check does not use the devices that it checks.
        self.group = Group(world.control, world.control, CpuBackend())
        self.random = np.random.default_rng(int(world.run_id, 16))  # the same on every rank

    def exact(self) -> tuple[WrongRow | None, int]:
        """Compare integers. Returns this rank's first wrong row, and the number of its rows."""
        kind = self.precision.result
        x = self.random.integers(0, 2, (self.columns, self.vectors)).astype(kind)
        parts = [
            part.astype(kind, copy=False) @ x for _, part in self._parts(self.b, 0, self.length, self.columns)
        ]
        through = self._gathered(parts, self.vectors, kind)
        wrong, seen = None, 0
        for first, a, c in self._rows():
            bad = ((c @ x) != (a.astype(kind, copy=False) @ through)).any(axis=1)
            seen += len(c)
            self.judged += len(c)
            if wrong is None and bad.any():
                wrong = WrongRow(first + int(bad.argmax()), 1, 0)
        return wrong, seen

    def rounded(self) -> tuple[WrongRow | None, int]:
        """Compare floating-point numbers. Returns this rank's first wrong row, and how many were compared."""
        with np.errstate(all="ignore"):
            scale = self._scale()
            kept = scale > 0
            self.kept = int(kept.sum())
            signs = self.random.integers(0, 2, (self.columns, self.vectors)) * 2.0 - 1.0
            x = signs * scale[:, None]
            images, norms = [], []
            for _, part in self._parts(self.b, 0, self.length, self.columns):
                wide = np.where(kept, self._factor(part), 0)
                images.append(wide @ x)
                norms.append(np.linalg.norm(wide * scale, axis=1)[:, None])
            through = self._gathered(images, self.vectors, self._wide)
            norm = self._gathered(norms, 1, np.dtype(np.float64))
            limit = self.precision.bound(self.length) + 4 * max(self.length, self.columns) ** 0.5 * DOUBLE
            # The smallest numbers are rounded to multiples of themselves, or to zero.
            sums, result = np.finfo(self.precision.sums), np.finfo(self.precision.result)
            tiny = float(scale.sum()) * (float(sums.tiny) * self.length + float(result.smallest_subnormal))
            wrong, seen = None, 0
            for first, read_a, read_c in self._rows():
                a, c = self._factor(read_a), np.where(kept, read_c, 0).astype(self._wide)
                reach = (abs(a) @ norm)[:, 0]
                stored = self.precision.stores * np.linalg.norm(c * scale, axis=1)
                tolerance = DEVIATIONS * (limit * reach + stored) + tiny
                within = np.isfinite(reach)
                usable = within & np.isfinite(c).all(axis=1) & np.isfinite(tolerance)
                difference = abs(c @ x - a @ through).max(axis=1, initial=0)
                bad = usable & ~(difference <= tolerance)
                seen += int(usable.sum())
                self.judged += int(within.sum())
                if wrong is None and bad.any():
                    row = int(bad.argmax())
                    wrong = WrongRow(first + row, float(difference[row]), float(tolerance[row]))
                wrong = wrong or self._overflow(first, a, c, within & ~usable)
        return wrong, seen

    @property
    def _wide(self) -> np.dtype[Any]:
        return np.dtype("complex128" if self.precision.result.kind == "c" else "float64")

    def _factor(self, part: HostArray) -> HostArray:
        """Return a part of a factor as it is multiplied, in float64."""
        return self.precision.factor(part).astype(self._wide)

    def _scale(self) -> HostArray:
        """Return a power of two for each column of B, near 1 / its largest value; 0: the column is not
        finite."""
        largest = np.zeros(self.columns)
        for _, part in self._parts(self.b, 0, self.length, self.columns):
            size = abs(self._factor(part)).max(axis=0, initial=0)
            largest = np.maximum(largest, np.where(np.isnan(size), np.inf, size))
        if self.world.size > 1:
            self.world.control.all_reduce(largest, "max")
        scale = np.where(largest > 0, np.exp2(-np.round(np.log2(np.maximum(largest, 2.0**-1000)))), 1.0)
        return np.where(np.isfinite(largest), scale, 0.0)

    def _overflow(self, first: int, a: HostArray, c: HostArray, rows: HostArray) -> WrongRow | None:
        """Return the first of some elements that are not finite where no sum can overflow; None if all
        can."""
        cells = np.argwhere(rows[:, None] & ~np.isfinite(c))[:CELLS]
        most = min(float(np.finfo(kind).max) for kind in (self.precision.result, self.precision.sums))
        for row, column in cells:
            values = np.empty((self.length, 1), self.b.dtype)
            self._read(self.b, (0, self.length), (int(column), int(column) + 1), values)
            reach = float((abs(a[row]) @ abs(self._factor(values)))[0])
            if reach * (1 + self.precision.bound(self.length)) < most:
                return WrongRow(first + int(row), float("nan"), reach, int(column))
        return None

    def _rows(self) -> Iterator[tuple[int, HostArray, HostArray]]:
        """Yield the first row's number, rows of A and the same rows of C, of this rank."""
        for first, a in self._parts(self.a, 0, self.rows, self.length, self.columns):
            c = np.empty((len(a), self.columns), self.c.dtype)
            self._read(self.c, (first, first + len(a)), (0, self.columns), c)
            yield first, a, c

    def _parts(
        self, source: Source, begin: int, end: int, columns: int, beside: int = 0
    ) -> Iterator[tuple[int, HostArray]]:
        """Yield the first row's number and whole rows, of this rank's share of the rows of a matrix."""
        start, stop = (begin + n for n in bounds(end - begin, self.world.size, self.world.rank))
        step = max(PART // (16 * max(columns, beside, self.vectors, 1)), 1)
        for first in range(start, stop, step):
            part = np.empty((min(first + step, stop) - first, columns), source.dtype)
            self._read(source, (first, first + len(part)), (0, columns), part)
            yield first, part

    def _read(
        self, source: Source, rows: tuple[int, int], columns: tuple[int, int], target: HostArray
    ) -> None:
        spans = [rows, columns]
        if len(source.shape) == 1:
            spans = [columns] if source is self.a or self._of_vector(source) else [rows]
        if not source.shape:
            spans = []
        region = Region(tuple(a for a, _ in spans), tuple(b for _, b in spans))
        source.read(region, target.reshape(region.shape))

    def _of_vector(self, source: Source) -> bool:
        """Whether a source is a product that has no rows because A has none."""
        return source is self.c and len(self.a.shape) == 1

    def _gathered(self, parts: list[HostArray], columns: int, dtype: np.dtype[Any]) -> HostArray:
        """Return all ranks' parts, one below the other."""
        mine = np.concatenate([np.empty((0, columns), dtype), *parts])
        gathered: HostArray = self.group.all_gather(np.ascontiguousarray(mine, dtype))
        return gathered
