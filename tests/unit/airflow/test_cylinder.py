"""The flow around a cylinder in a channel has the published drag and lift."""

from __future__ import annotations

import numpy as np
import pytest
from flow_runs import channel, free, simulate

from meshrun.jobs.airflow.coefficients import shedding
from meshrun.runner.errors import RunError
from meshrun.runner.system.compiler import find_compiler


@pytest.mark.skipif(find_compiler() is None, reason="takes too long without a C++ compiler")
def test_drag_and_lift_of_schaefer_and_turek() -> None:
    """2D-1 of their benchmark (1996), Reynolds number 20: drag 5.5795, lift 0.0106.

    With 10 cells in the diameter: the channel is a whole number of cells high then. With 30 and 40
    (benchmarks/airflow_cylinder.py), both are within 1 %.
    """
    history = simulate(channel(10, 20, 0.1), 5000, 200, "host")
    assert np.ptp(history.drag[-4:]) < 0.005
    assert history.drag[-1] == pytest.approx(5.5795, rel=0.02)
    assert history.lift[-1] == pytest.approx(0.0106, rel=0.08)


@pytest.mark.nightly
@pytest.mark.skipif(find_compiler() is None, reason="takes too long without a C++ compiler")
def test_a_free_cylinder_sheds_vortices_at_the_known_frequency() -> None:
    """Reynolds number 100: C. H. K. Williamson, J. Fluid Mech. 206 (1989), 579-627, measured 0.164."""
    found = shedding(simulate(free(8, 100, 0.1, (24.0, 32.0)), 12_000, 8))
    assert found.strouhal == pytest.approx(0.165, abs=0.006)
    assert found.uncertainty < 0.001


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_compiled_steps_are_numpys() -> None:
    flow = free(4, 50, 0.1, (6.0, 8.0))
    one, other = (simulate(flow, 12, 4, device) for device in ("numpy", "host"))
    np.testing.assert_array_equal(one.drag, other.drag)
    np.testing.assert_array_equal(one.lift, other.lift)
    np.testing.assert_array_equal(one.steps, [4, 8, 12])


def test_a_flow_that_breaks_down_is_no_result() -> None:
    with np.errstate(all="ignore"), pytest.raises(RunError, match="broke down before step"):
        simulate(free(4, 1e7, 0.9, (6.0, 8.0)), 400, 20, "numpy")
