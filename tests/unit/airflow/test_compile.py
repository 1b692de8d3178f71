"""The step's kernels compile for GPUs without a warning, and hardly spill; no GPU needed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvrtc_log import log_of

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import LATTICES
from meshrun.jobs.airflow.step import Collision, step_job
from meshrun.runner.compiler.cuda.single_pass import emit
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.trace import trace


@pytest.mark.parametrize(
    ("name", "collision", "storage"),
    [("D2Q9", "trt", "float32"), ("D3Q19", "les", "float32"), ("D3Q27", "trt", "float16")],
)
def test_a_step_compiles(name: str, collision: Collision, storage: str) -> None:
    lattice = LATTICES[name]
    kinds = [kind for kind in Cell if kind not in (Cell.SLIP_Z, Cell.SLIP_Z_END) or lattice.axes == 3]
    job = step_job(lattice, kinds, collision, storage)
    inputs = [Operand(one, np.dtype(storage)) for one in job.arrays[:-1]]
    inputs.append(Operand("cells", np.dtype("uint8")))
    parameters = job.complete({"omega": 1.9, **({"omega_minus": 1.8} if collision != "bgk" else {})})
    parameters |= {"velocity_x": 0.1, "anchor": 0.01}
    program = trace(
        job.function, inputs, ((1, 1),) * lattice.axes, parameters, job.services, job.output_names
    )
    log = log_of(emit(program), "90")
    assert "warning" not in log
    (spilled,) = re.findall(r"(\d+) bytes spill stores", log)
    assert int(spilled) <= 16
