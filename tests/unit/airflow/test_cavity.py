"""A closed box whose top moves: against the published flow, on ranks, and what does not apply to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.airflow.airflow import airflow
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import D3Q19
from meshrun.jobs.airflow.shapes.bodies import Body
from meshrun.jobs.airflow.tunnel import Cavity
from meshrun.runner.errors import UserError
from meshrun.runner.region import Region
from meshrun.runner.system.compiler import find_compiler


def velocity(folder: Path, **options: Any) -> Any:
    """The velocity of the air after the last step over that of the top; rows from the floor upwards."""
    h5py = pytest.importorskip("h5py")
    airflow.run("cavity", device="cpu", fields=folder / "f.h5", **options)
    with h5py.File(folder / "f.h5") as file:
        return file["VTKHDF/PointData/velocity"][-1][1:-1, 1:-1].astype(float) / 0.1


@pytest.mark.skipif(find_compiler() is None, reason="takes too long without a C++ compiler")
def test_the_cavity_of_ghia_at_reynolds_number_1000(tmp_path: Path) -> None:
    """U. Ghia, K. N. Ghia, C. T. Shin, J. Comput. Phys. 48 (1982): the least velocity along the vertical
    centreline is -0.3829 at a height of 0.1719; along the horizontal one it is 0.3710 and -0.5155."""
    size = 48
    found = velocity(tmp_path, size=f"{size + 2}x{size + 2}", reynolds=1000.0, steps=round(45 * size / 0.1))
    along = found[:, size // 2 - 1 : size // 2 + 1, 0].mean(1)
    assert along.min() == pytest.approx(-0.3829, rel=0.04)
    assert (along.argmin() + 0.5) / size == pytest.approx(0.1719, abs=0.02)
    up = found[size // 2 - 1 : size // 2 + 1, :, 1].mean(0)
    assert up.max() == pytest.approx(0.3710, rel=0.04)
    assert up.min() == pytest.approx(-0.5155, rel=0.04)


def test_no_rank_changes_the_cavity(tmp_path: Path) -> None:
    words = {"size": "20x24", "reynolds": 100.0, "steps": 60}
    np.testing.assert_array_equal(velocity(tmp_path, **words), velocity(tmp_path, **words, ranks=3))


def test_a_cavity_of_three_axes_is_closed_but_for_its_top() -> None:
    body = Body("cavity", (7, 8, 9), 7.0, 1.0)
    tunnel = Cavity(body, D3Q19, "slip", "uniform", 0.1, np.dtype(np.float32))
    kinds = tunnel.cells(Region((0, 0, 0), body.shape))
    assert (kinds[1:-1, 0, 1:-1] == Cell.MOVING).all()
    assert (kinds[1:-1, 1:-1, 1:-1] == Cell.FLUID).all()
    for wall in (kinds[0], kinds[-1], kinds[:, -1], kinds[:, :, 0], kinds[:, :, -1]):
        assert (wall == Cell.SOLID).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sides": "periodic"}, "sides does not apply: a cavity is closed"),
        ({"inlet": "parabolic"}, "inlet does not apply"),
        ({"length": 9.0}, "length does not apply to a cavity"),
        ({"place": "0.5,0.5"}, "place does not move a cavity"),
        ({"forces": Path("f.csv")}, "there is no body"),
    ],
)
def test_options_of_a_tunnel_do_not_apply(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        airflow.run("cavity", device="cpu", size="20x20", steps=4, **options)
