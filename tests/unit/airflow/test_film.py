"""Isolines over a film's pictures, and the colour that they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshrun.jobs.airflow.lattice import D2Q9
from meshrun.jobs.airflow.observers.film import FlowFrames, draw_lines, isolines
from meshrun.runner.report.colors import NOT_A_NUMBER


def test_isolines_are_where_the_value_passes_a_level() -> None:
    values = np.array([[0.0, 0.4, 0.6, 1.0, np.nan, 9.0]] * 3)
    assert isolines(values, 0, 1, 1).tolist() == [[False, True, False, False, False, False]] * 3
    assert not isolines(np.full((3, 4), 0.3), 0, 1, 9).any()
    assert isolines(values.T, 0, 1, 1)[:, 0].tolist() == [False, True, False, False, False, False]


def test_lines_have_a_colour_of_their_own() -> None:
    picture = np.array([[253, 254], [0, NOT_A_NUMBER]], np.uint8)
    draw_lines(picture, np.array([[False, False], [True, False]]))
    assert picture.tolist() == [[253, 253], [254, NOT_A_NUMBER]]
    content = FlowFrames(D2Q9, np.dtype(np.float32), "speed", 0.1, 8.0)
    plain, lined = (replace(content, isolines=count).palette("viridis") for count in (0, 3))
    assert len(plain) == len(lined) == 768
    assert lined[762:765] == b"\xff\xff\xff" != plain[762:765]
    assert lined[:762] + lined[765:] == plain[:762] + plain[765:]
    assert replace(content, isolines=3).palette("coolwarm")[762:765] == bytes((16, 16, 16))
