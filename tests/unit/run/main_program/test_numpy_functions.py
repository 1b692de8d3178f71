"""NumPy's functions of distributed arrays that other modules of the package implement."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_ENTRY_POINTS = """
import importlib.metadata
importlib.metadata.entry_points = lambda **_: ()
import numpy as np
import meshrun
with meshrun.open_world("cpu") as world:
    a, b = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)
    np.testing.assert_allclose((world.array(a) @ world.array(b)).gather(), a @ b)
    np.testing.assert_allclose(np.fft.rfftn(world.array(a)).gather(), np.fft.rfftn(a))
"""


def test_a_checkout_that_is_not_installed_has_all_functions() -> None:
    """It has no entry points. Another interpreter: in this one, the modules may have been imported."""
    words = [sys.executable, "-c", WITHOUT_ENTRY_POINTS]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
