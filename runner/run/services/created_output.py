"""The service `create`: a job of kind "job" creates its output array, and every rank writes parts of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.errors import UserError
from runner.region import Shape
from runner.report.record import Record
from runner.run.map_run import commit, create_files
from runner.run.options import RunContext
from runner.run.record.forecast_record import type_record
from runner.storage.formats.registry import Sink, open_sink, read_back, reopen


@dataclass
class CreateOutput:
    """Creates the output of one run: call it once, on every rank. sink: what it created."""

    run: RunContext
    sink: Sink | None = field(default=None, init=False)

    def __call__(
        self, shape: Shape, dtype: np.dtype[Any], chunks: Shape | None = None, *, serial: bool = False
    ) -> Sink:
        """Create the array under a temporary name, which the runner renames when all ranks have returned.
        Collective.

        Each rank writes its parts by the sink's `write`: any part, or whole chunks if `sink.chunks` is not
        None. chunks: shape of the chunks of a format that has chunks; by default, the format chooses. serial:
        a format that one process writes whole, such as an image, is accepted too, for `write_block`. Raises
        UserError for other formats, and for such a format without `serial`.
        """

        def opened() -> list[Sink]:
            sink = open_sink(self.run.targets[0], shape, dtype, self.run.world.run_id, chunks)
            if not sink.parallel and not serial:
                raise UserError(
                    f"job {self.run.job.name} writes its output in parts, and {sink.path.suffix} files are "
                    "written whole",
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
            from runner.run.verify.results import drop_cached

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
