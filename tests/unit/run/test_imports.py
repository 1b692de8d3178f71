"""What every rank loads before it knows what the job needs."""

from __future__ import annotations

import subprocess
import sys

LATER = (
    "meshrun.runner.maps.streamed.streaming",
    "meshrun.runner.steps.loop",
    "meshrun.runner.run.step_run",
    "meshrun.runner.run.services.job_run",
    "meshrun.runner.run.verify.results",
    "meshrun.runner.compiler.compiled",
    "meshrun.runner.compiler.device_kernel",
    "meshrun.runner.compiler.traced",
    "meshrun.runner.compiler.whole.trace",
    "meshrun.runner.programs.stages",
    "meshrun.runner.transforms.plan",
    "meshrun.runner.compiler.cpp.host",
    "meshrun.runner.compiler.cuda.single_pass",
    "meshrun.runner.compiler.cuda.steps.kernel",
)


def test_runs_load_streaming_steps_checks_and_kernels_when_they_need_them() -> None:
    program = f"""
import meshrun.runner.run.execute, meshrun.jobs.filters.laplacian, sys
print(*(name for name in {LATER} if name in sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


def test_an_array_is_looked_at_for_masked_cells_only_if_there_may_be_some() -> None:
    """To import numpy.ma takes the first call of a job 20 ms."""
    program = """
import sys
import numpy, meshrun
before = "numpy.ma" in sys.modules
meshrun.map_blocks(lambda block: block + 1)(numpy.ones((4, 4)))
print(("numpy.ma" in sys.modules) == before)
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "True"


def test_the_version_is_that_of_the_installed_package() -> None:
    program = """
import importlib.metadata, sys, meshrun
assert meshrun.__version__ == importlib.metadata.version("meshrun")
assert "__version__" in dir(meshrun)
print([name for name in ("numpy", "meshrun.runner", "meshrun.launch", "click") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
