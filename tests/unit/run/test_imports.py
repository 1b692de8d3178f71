"""What every rank loads before it knows what the job needs."""

from __future__ import annotations

import subprocess
import sys

LATER = ("runner.pipeline.streamed.streaming", "runner.pipeline.steps.loop", "runner.run.step_run",
         "runner.run.verify.results", "runner.fuse.compiled", "runner.fuse.host", "runner.fuse.single_pass",
         "runner.fuse.steps.kernel")  # fmt: skip


def test_runs_load_streaming_steps_checks_and_kernels_when_they_need_them() -> None:
    program = f"""
import runner.run.execute, jobs.filters.laplacian, sys
print(*(name for name in {LATER} if name in sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


def test_the_version_is_that_of_the_installed_package() -> None:
    program = """
import importlib.metadata, sys, meshrun
assert meshrun.__version__ == importlib.metadata.version("meshrun")
assert "__version__" in dir(meshrun)
print([name for name in ("numpy", "runner", "click") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
