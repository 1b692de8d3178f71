"""The service `create`: a job of kind "job" creates its output arrays, of which every rank writes parts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.plan.task import NUMBERS, ArrayType
from meshrun.runner.region import Shape
from meshrun.runner.report.record import Record
from meshrun.runner.run.finish import commit
from meshrun.runner.run.prepare import RunContext, make_outputs
from meshrun.runner.storage.formats.registry import Sink, open_sink, read_back, reopen


@dataclass
class CreateOutput:
    """Creates the outputs of one run: call it once for each, on every rank. sinks: what it created."""

    run: RunContext
    sinks: list[Sink] = field(default_factory=list, init=False)

    def __call__(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        chunks: int | Sequence[int] | None = None,
        *,
        serial: bool = False,
    ) -> Sink:
        """Create the next output under a temporary name; the runner renames it when all ranks have returned.
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
            write in parts, for two outputs in one file, and for more calls than the job has outputs.

        Examples
        --------
        >>> meshrun.write_block(world, block, create(input.shape, "f8"))
        """
        job, targets, number = self.run.job.name, self.run.targets, len(self.sinks)

        def make() -> Sink:
            if number == len(targets):
                raise UserError(
                    f"job {job} calls create more often than it has outputs",
                    got=f"call {number + 1}",
                    expected=", ".join(map(str, targets)),
                    hint=f"@meshrun.job(outputs={number + 1})",
                )
            lengths, element = _lengths(job, "a shape", shape), _element(job, dtype)
            pieces = None if chunks is None else _lengths(job, "chunks", chunks)
            if pieces is not None and len(pieces) != len(lengths):
                raise UserError(
                    f"job {job}: create got chunks and a shape of different numbers of axes",
                    got=f"chunks={pieces} and shape {lengths}",
                )
            sink = open_sink(targets[number], lengths, element, self.run.world.run_id, pieces)
            if any(sink.partial == other.partial for other in self.sinks):
                raise UserError(
                    f"job {job} writes two outputs to one file",
                    got=sink.path,
                    expected="a file for each output",
                )
            if not sink.parallel and not serial:
                raise UserError(
                    f"job {job} writes its output in parts, and {sink.path.suffix} files are written whole",
                    got=sink.path,
                    expected="a file such as .npy, .zarr, .h5 or .raw",
                )
            make_outputs(self.run, [sink], self.sinks)
            return sink

        self.sinks.append(self.run.world.on_root(make))
        self.run.transaction.track_partial(*(sink.partial for sink in self.sinks))
        return self.sinks[-1]

    def finish(self) -> tuple[Record | None, list[ArrayType]]:
        """Check the outputs if asked to, and rename them; return the record of the check, and the outputs'
        types. Collective, after a barrier that follows the writes of all ranks."""
        run, sinks = self.run, self.sinks
        missing = run.targets[len(sinks) :]
        if missing:
            raise RunError(f"job {run.job.name} returned without creating its output {missing[0]}")
        proof = None
        if run.options.verify != "off" and run.job.verify is not None:
            from meshrun.runner.run.verify.results import drop_cached

            with run.world.phases("verify"):
                drop_cached(run.world, sinks)
                sources, written = [reopen(source) for source in run.sources], [*map(read_back, sinks)]
                output = written[0] if len(written) == 1 else written
                proof = run.job.verify(run.world, sources, output, run.options.verify, **run.parameters)
            run.world.control.barrier()  # another rank may still be reading them
        commit(run, sinks)
        run.transaction.forget_partial()
        return proof, [(sink.shape, sink.dtype) for sink in sinks]


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
