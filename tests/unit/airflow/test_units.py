"""A flow's rates, and the flows that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from meshrun.jobs.airflow.units import Flow
from meshrun.runner.errors import UserError


def test_rates_follow_from_the_reynolds_number() -> None:
    flow = Flow(reynolds=150, length=30, speed=0.1)
    assert flow.viscosity == pytest.approx(0.02)
    assert (1 / flow.omega - 0.5) / 3 == pytest.approx(0.02)
    assert flow.omega_minus == pytest.approx(1.0054, abs=1e-4)
    viscous = Flow(reynolds=10, length=30, speed=0.05)
    assert (1 / viscous.omega - 0.5) * (1 / viscous.omega_minus - 0.5) == pytest.approx(3 / 16)
    assert flow.outflow == pytest.approx(0.67735, abs=1e-5)
    assert flow.mach == pytest.approx(0.1732, abs=1e-4)
    assert flow.cell_reynolds == pytest.approx(5)
    flow.check()


def test_the_rate_of_odd_parts_has_no_jump() -> None:
    """From viscous flows to the largest Reynolds numbers, one in a hundred apart."""
    rates = [Flow(reynolds, 30, 0.1).omega_minus for reynolds in 1.01 ** np.arange(1500)]
    assert abs(np.diff(rates)).max() < 0.02
    assert min(rates) > 1
    assert rates[-1] == pytest.approx(1.8, abs=1e-4)


def test_a_fast_flow_is_refused() -> None:
    Flow(100, 100, 0.115).check()
    with pytest.raises(
        UserError, match=r"0\.2 cells a step, a Mach number of 0\.35.*0\.115 cells a step or less"
    ):
        Flow(100, 100, 0.2).check()


def test_eddies_smaller_than_a_cell_are_refused_but_with_a_model_of_them() -> None:
    flow = Flow(reynolds=1e5, length=100, speed=0.1)
    with pytest.raises(UserError, match="--collision les") as refused:
        flow.check("trt")
    Flow(1e5, 3334, 0.1).check("trt")  # as the hint says
    Flow(3000, 100, 0.1).check("trt")
    assert "a length of 3334 cells or more, or a Reynolds number of 3000 or less" in str(refused.value)
    limit = float(str(refused.value).partition("expected omega up to ")[2].partition(",")[0])
    assert Flow(2999.9, 100, 0.1).omega < limit + 1e-5 < Flow(3002, 100, 0.1).omega + 1e-5
    flow.check("les")
    with pytest.raises(UserError):
        Flow(2000, 100, 0.1).check("bgk")


@pytest.mark.parametrize(
    "values", [(0, 10, 0.1), (-1, 10, 0.1), (100, 0, 0.1), (100, 10, 0), (float("nan"), 10, 0.1)]
)
def test_numbers_that_mean_nothing_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(UserError, match="positive number"):
        Flow(*values).check()
