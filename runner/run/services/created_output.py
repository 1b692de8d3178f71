"""The service `create`: a job of kind "job" creates its output array, and every rank writes parts of it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.errors import UserError
from meshrun.runner.forecast.record import type_record
from meshrun.runner.plan.task import NUMBERS
from meshrun.runner.region import Shape
from meshrun.runner.report.record import Record
from meshrun.runner.run.context import RunContext
from meshrun.runner.run.map_run import commit, create_files
from meshrun.runner.storage.formats.registry import Sink, open_sink, read_back, reopen


@dataclass
class CreateOutput:
    """Creates the output of one run: call it once, on every rank. sink: what it created."""

    run: RunContext
    sink: Sink | None = field(default=None, init=False)

    def __call__(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        chunks: int | Sequence[int] | None = None,
        *,
        serial: bool = False,
    ) -> Sink:
        """Create the array under a temporary name, which the runner renames when all ranks have returned.
        Collective.

        Each rank writes its parts by the sink's `write`: any part, or whole chunks if `sink.chunks` is not
        None.

        Parameters
        ----------
        shape: lengths of the axes; a number for one axis.
        dtype: a dtype of numbers, or what NumPy makes one of: "f8", np.float64, float.
        chunks: shape of the chunks of a format that has chunks, a length for each axis. By default, the
            format chooses.
        serial: also accept a format that one process writes whole, such as an image, for `write_block`.

        Raises
        ------
        UserError: on every rank, for a shape or dtype that no array can have, for a format that ranks cannot
            write in parts, and for a second call: a job has one output.

        Examples
        --------
        >>> meshrun.write_block(world, block, create(input.shape, "f8"))
        """
        job, target = self.run.job.name, self.run.targets[0]

        def opened() -> list[Sink]:
            if self.sink is not None:
                raise UserError(
                    f"job {job} calls create twice, and has one output, {target}",
                    hint="one call of create, or a map_blocks job with outputs=2",
                )
            lengths, element = _lengths(job, "a shape", shape), _element(job, dtype)
            pieces = None if chunks is None else _lengths(job, "chunks", chunks)
            if pieces is not None and len(pieces) != len(lengths):
                raise UserError(
                    f"job {job}: create got chunks and a shape of different numbers of axes",
                    got=f"chunks={pieces} and shape {lengths}",
                )
            sink = open_sink(target, lengths, element, self.run.world.run_id, pieces)
            if not sink.parallel and not serial:
                raise UserError(
                    f"job {job} writes its output in parts, and {sink.path.suffix} files are written whole",
                    got=sink.path,
                    expected="a file such as .npy, .zarr, .h5 or .raw",
                )
            return [sink]

        self.sink = create_files(self.run, opened)[0]
        return self.sink

    def finish(self) -> tuple[Record | None, Record]:
        """Check the output if asked to, and rename it; return the records of the check and of the output's
        type. Collective."""
        run, sink = self.run, self.sink
        assert sink is not None
        run.world.control.barrier()  # another rank may still be writing
        proof = None
        if run.options.verify != "off" and run.job.verify is not None:
            from meshrun.runner.run.verify.results import drop_cached

            with run.phases("verify"):
                drop_cached(run.world, [sink])
                sources = [reopen(source) for source in run.sources]
                proof = run.job.verify(
                    run.world, sources, read_back(sink), run.options.verify, **run.parameters
                )
        kind = type_record((sink.shape, sink.dtype))
        commit(run, [sink])
        run.transaction.forget_partial()
        return proof, kind


def _lengths(job: str, what: str, value: Any) -> Shape:
    """Return a shape as a tuple of ints. what: the value's name in the error."""
    try:
        lengths = tuple(operator.index(length) for length in (value if np.ndim(value) else (value,)))
        np.empty((0,) * len(lengths))  # ValueError for more axes than an array can have
    except (TypeError, ValueError):
        lengths = (-1,)
    if any(length < 0 for length in lengths):
        raise UserError(
            f"job {job}: create got {what} that no array can have",
            got=repr(value),
            expected="a whole number, 0 or more, for each axis",
        )
    return lengths


def _element(job: str, value: Any) -> np.dtype[Any]:
    """Return a dtype of numbers, in the machine's byte order."""
    try:
        found: np.dtype[Any] = np.dtype(value)
    except TypeError:
        found = np.dtype(object)
    if value is None or found.kind not in NUMBERS:  # NumPy's dtype of None is float64
        raise UserError(
            f"job {job}: create got a dtype that is none of numbers", got=repr(value), expected="such as 'f8'"
        )
    native: np.dtype[Any] = found.newbyteorder("=")
    return native
