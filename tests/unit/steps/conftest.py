"""Tests of steps replace `compiled.compile_for`: modules that name it are imported before."""

import meshrun.runner.programs.kernel  # noqa: F401
