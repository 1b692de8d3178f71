"""Flows through the whole job, with its defaults, against published figures; benchmarks/airflow_flows.py runs
them at the sizes of docs/airflow.md."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import surfaces
from PIL import Image

from meshrun.jobs.airflow.airflow import airflow
from meshrun.runner.system.compiler import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="takes too long without a C++ compiler")


def blow(shape: str, **options: Any) -> Any:
    return airflow.run(shape, device="cpu", **options)["result"]


def test_a_wake_that_is_steady_in_free_air_becomes_steady_between_sides(tmp_path: Path) -> None:
    """A cylinder at Reynolds number 40 sheds vortices from about 46 on (C. P. Jackson, J. Fluid Mech. 182
    (1987), 23-45). Sound that stands between the sides would have its lift grow to 0.04 by the end."""
    file = tmp_path / "forces.csv"
    result = blow("cylinder", size="200x160", length=5.0, reynolds=40.0, steps=6000, forces=file)
    rows = list(csv.DictReader(file.open()))
    time, lift = (np.array([float(row[name]) for row in rows]) for name in ("time", "lift"))
    early, late = (np.ptp(lift[(time > begin) & (time < begin + 20)]) for begin in (40, 100))
    assert late < 0.3 * early
    assert late < 0.005
    assert result["strouhal"] is None
    assert result["drag"] == pytest.approx(1.55, abs=0.06)


def test_a_sphere_from_a_file_has_the_drag_of_the_named_one(tmp_path: Path) -> None:
    path = surfaces.save_binary(tmp_path / "sphere.stl", surfaces.sphere(4))
    words = {"size": "36x24x24", "length": 8.0, "place": "0.35,0.5,0.5", "reynolds": 50.0, "steps": 150}
    named, made = (blow(shape, **words) for shape in ("sphere", str(path)))
    assert made["reference_area"] == pytest.approx(named["reference_area"], rel=0.003)
    assert made["drag"] == pytest.approx(named["drag"], rel=0.005)


def test_a_picture_with_smooth_edges_has_the_drag_of_the_named_shape(tmp_path: Path) -> None:
    """Whole cells make the drag of this circle 2 % larger."""
    fine = np.arange(8) / 8 - 7 / 16
    rows, columns = (np.add.outer(np.arange(n), fine).reshape(-1) for n in (60, 90))
    inside = np.hypot(*np.meshgrid(rows - 29.5, columns - 29.5, indexing="ij")) <= 6.2
    covered = inside.reshape(60, 8, 90, 8).mean((1, 3))
    picture = tmp_path / "circle.png"
    Image.fromarray(np.round(255 * (1 - covered)).astype(np.uint8)).save(picture)
    words = {"reynolds": 60.0, "steps": 1500, "length": 12.4}
    named = blow("cylinder", size="90x60", place=f"{30 / 90},0.5", **words)["drag"]
    smooth, cells = (blow(str(picture), surface=surface, **words) for surface in ("auto", "cells"))
    assert smooth["reference_length"] == pytest.approx(12.4, rel=0.02)
    assert smooth["drag"] == pytest.approx(named, rel=0.008)
    assert abs(cells["drag"] / named - 1) > 0.015


@pytest.mark.nightly
def test_a_square_sheds_vortices_at_the_published_frequency(tmp_path: Path) -> None:
    """Reynolds number 100: Strouhal numbers of 0.146 to 0.149, drags of 1.46 to 1.49. Sound between the sides
    made it 1.558, and 0.1532."""
    solid = np.zeros((320, 480), np.uint8)
    solid[155:165, 115:125] = 1
    np.save(tmp_path / "square.npy", solid)
    result = blow(str(tmp_path / "square.npy"), reynolds=100.0, steps=25_000)
    assert result["strouhal"] == pytest.approx(0.1475, abs=0.002)
    assert result["drag"] == pytest.approx(1.475, abs=0.03)


@pytest.mark.nightly
def test_an_airfoil_has_the_published_drag() -> None:
    """NACA 0012, Reynolds number 500: 0.1762 (D. P. Lockard, L.-S. Luo, S. D. Milder, B. A. Singer, J. Stat.
    Phys. 107 (2002), 423-478). With 40 cells in its chord; 80 in a wider domain give 0.1765."""
    result = blow("airfoil:0012", size="360x320", length=40.0, reynolds=500.0, steps=12_000)
    assert result["drag"] == pytest.approx(0.1762, rel=0.05)
    assert result["lift"] == pytest.approx(0, abs=1e-3)
