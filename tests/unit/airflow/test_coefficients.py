"""Coefficients and frequencies, from signals whose values are known."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.airflow import coefficients
from meshrun.jobs.airflow.coefficients import History, shedding
from meshrun.jobs.airflow.shapes.bodies import Body, Round
from meshrun.runner.errors import UserError

Array = np.ndarray[Any, Any]


def history(time: Array, lift: Array) -> History:
    return History(np.arange(len(time)), time, 3 + 0.5 * np.abs(lift), lift)


def signal(
    frequency: float, periods: float, noise: float, seed: int, samples: float = 23.7, harmonic: float = 0.1
) -> History:
    """A lift of amplitude 0.3 around 0.01, with a third harmonic and white noise, both relative to the
    amplitude."""
    random = np.random.default_rng(seed)
    time = np.linspace(0, periods / frequency, int(periods * samples))
    turns = 2 * np.pi * (frequency * time + random.random())
    lift = np.sin(turns) + harmonic * np.sin(3 * turns + 1) + noise * random.standard_normal(len(time))
    return history(time, 0.01 + 0.3 * lift)


def test_coefficients_have_the_signs_of_drag_and_of_lift_upwards() -> None:
    body = Round("the cylinder", (100, 200), 20.0, 20.0, (50.0, 50.0), 10.0)
    found = coefficients.coefficients([0, 100], np.array([[0.0, 0.0], [-0.05, 0.2]]), body, 0.1)
    np.testing.assert_allclose(found.drag, [0, 2 * 0.2 / (0.01 * 20)])
    np.testing.assert_allclose(found.lift, [0, 2 * 0.05 / (0.01 * 20)])  # rows count downwards
    np.testing.assert_allclose(found.time, [0, 100 * 0.1 / 20])
    assert found.side is None
    deep = coefficients.coefficients([5], np.array([[0.3, 0.2, 0.1]]), Body("", (9, 9, 9), 3.0, 7.0), 1.0)
    assert deep.side is not None
    np.testing.assert_allclose([deep.side[0], deep.lift[0], deep.drag[0]], np.array([0.3, -0.2, 0.1]) * 2 / 7)


@pytest.mark.parametrize(
    ("noise", "periods", "seeds"), [(0.01, 5.5, 150), (0.2, 5.5, 150), (0.1, 9.3, 150), (0.2, 30.2, 80)]
)
def test_the_strouhal_number_is_within_its_uncertainty_in_95_of_100_cases(
    noise: float, periods: float, seeds: int
) -> None:
    inside, widths = 0, []
    for seed in range(seeds):
        true = np.random.default_rng(1000 + seed).uniform(0.15, 0.32)
        found = shedding(signal(true, periods, noise, seed))
        counted = int(periods) if periods < 8 else int(periods / 2)  # of the later half, if these are four
        assert found.periods in (counted, counted - 1)
        inside += abs(found.strouhal - true) <= found.uncertainty
        widths.append(found.uncertainty / true)
    assert inside / seeds > 0.95 - 3 * (0.95 * 0.05 / seeds) ** 0.5  # three standard deviations of the count
    # Not by being vague: Cramer and Rao's bound for the frequency, times Student's t, and some.
    bound = np.sqrt(6) * noise / (np.pi * counted * np.sqrt(23.7 * counted))
    assert np.median(widths) < 2 * 3.2 * bound


def test_means_and_extremes_are_of_whole_periods() -> None:
    found = shedding(signal(0.2, 9.5, 0.0, 3, harmonic=0.0, samples=200))
    assert found.strouhal == pytest.approx(0.2, rel=1e-6)
    assert found.lift == pytest.approx(0.01, abs=1e-3)
    assert found.lift_amplitude == pytest.approx(0.3, rel=1e-3)
    assert found.lift_rms == pytest.approx(0.3 / np.sqrt(2), rel=1e-3)
    assert found.begin == pytest.approx(9.5 / 0.2 - found.periods / 0.2, rel=1e-3)
    assert found.greatest_lift == pytest.approx(0.31, rel=1e-3)
    assert found.greatest_drag == pytest.approx(3 + 0.5 * 0.31, rel=1e-3)
    assert found.drag == pytest.approx(3 + 0.5 * 0.3 * 2 / np.pi, rel=2e-3)


def test_the_start_of_a_flow_does_not_count() -> None:
    """The lift grows for twenty periods, after a push, with another frequency at first."""
    time = np.linspace(0, 200, 6000)
    amplitude = 0.4 / (1 + np.exp(-(time - 90) / 8))
    frequency = 0.16 + 0.02 / (1 + np.exp(-(time - 90) / 8))
    turns = 2 * np.pi * np.cumsum(frequency) * (time[1] - time[0])
    lift = amplitude * np.sin(turns) + 8 * np.exp(-time / 0.5)
    found = shedding(history(time, lift))
    assert found.strouhal == pytest.approx(0.18, rel=2e-3)
    assert abs(found.strouhal - 0.18) <= 2 * found.uncertainty
    assert 12 <= found.periods <= 22
    assert found.lift_amplitude == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize("length", [60, 90, 120])
def test_what_the_start_left_is_not_in_the_averages(length: int) -> None:
    """An eddy at the start sheds vortices at once, at almost the frequency and the amplitude that stay.

    A cylinder at Reynolds number 200 had 0.18741 +- 0.00006 after a time of 90, and 0.18762 in the end.
    """
    time = np.linspace(0, length, 75 * length)
    left = np.exp(-time / 8)
    turns = 2 * np.pi * (0.1876 * time + 0.05 * left)
    drag = 1.43 - 0.025 * left + 0.03 * np.cos(2 * turns)
    found = shedding(History(np.arange(len(time)), time, drag, 0.55 * (1 + 0.15 * left) * np.sin(turns)))
    assert abs(found.strouhal - 0.1876) <= max(found.uncertainty, 5e-5)
    assert found.drag == pytest.approx(1.43, rel=1e-3)
    assert found.lift_rms == pytest.approx(0.55 / np.sqrt(2), rel=5e-3)


def test_periods_of_different_lengths_give_no_strouhal_number() -> None:
    """Two cylinders close together, whose vortices change sides, had 0.126 +- 0.007, and later none."""
    time = np.linspace(0, 30, 1200)
    turns = 2 * np.pi * (0.2 * time + 0.1 * np.sin(2 * np.pi * 0.07 * time))
    with pytest.raises(UserError, match="differs from period to period"):
        shedding(history(time, 0.3 * np.sin(turns)))


def test_a_drag_that_has_not_settled_does_not_count() -> None:
    time = np.linspace(0, 200, 4000)
    drag = 1.5 + 0.8 * np.exp(-time / 30) + 0.05 * np.cos(0.8 * np.pi * time)
    found = shedding(History(np.arange(4000), time, drag, np.sin(0.4 * np.pi * time)))
    assert 15 <= found.periods <= 30
    assert found.greatest_drag == pytest.approx(1.55, rel=0.04)
    assert found.drag == pytest.approx(1.5, rel=0.02)
    with pytest.raises(UserError, match="fewer than four"):
        shedding(History(np.arange(4000), time, 3 + time / 20, np.sin(0.4 * np.pi * time)))


@pytest.mark.parametrize("periods", [1.6, 2.5, 3.3, 3.9])
def test_fewer_than_four_periods_are_refused(periods: float) -> None:
    with pytest.raises(UserError, match="fewer than four regular periods") as caught:
        shedding(signal(0.2, periods, 0.001, 1, samples=60))
    assert caught.value.expected
    assert "a period takes about" in str(caught.value)


def test_four_periods_are_enough() -> None:
    assert shedding(signal(0.2, 4.4, 0.01, 1)).periods == 4


def test_what_does_not_shed_is_refused() -> None:
    time = np.linspace(0, 60, 1000)
    noise = np.random.default_rng(0).standard_normal(1000)
    with pytest.raises(UserError, match="a steady flow"):
        shedding(history(time, 0.0106 + np.exp(-time)))
    with pytest.raises(UserError, match=r"regular"):
        shedding(history(time, noise))
    with pytest.raises(UserError, match="sampled too rarely") as caught:
        shedding(signal(0.2, 40, 0.0, 1, samples=6))
    assert str(caught.value.got).startswith("6.0 samples")
    with pytest.raises(UserError, match="not finite"):
        shedding(history(time, np.where(time > 50, np.nan, np.sin(time))))
    with pytest.raises(UserError, match="5 samples"):
        shedding(history(time[:5], noise[:5]))


@pytest.mark.parametrize(("rate", "noise"), [(0.03, 0.0), (0.05, 0.01), (0.02, 1e-3)])
def test_a_lift_that_decays_has_no_frequency(rate: float, noise: float) -> None:
    """Sound in a steady flow loses a part of its amplitude in each period."""
    time = np.linspace(0, 60, 3000)
    lift = 0.05 * np.exp(-rate * 0.27 * time) * np.sin(2 * np.pi * 0.27 * time)
    lift += noise * 0.05 * np.exp(-rate * 0.27 * time) * np.random.default_rng(0).standard_normal(3000)
    with pytest.raises(UserError, match=r"falls by .* from period to period"):
        shedding(History(np.arange(3000), time, np.full(3000, 2.1), lift))


def test_a_lift_whose_amplitude_varies_does_not_decay() -> None:
    time = np.linspace(0, 200, 8000)
    amplitude = 0.3 * (1 + 0.08 * np.sin(0.4 * time))
    found = shedding(history(time, amplitude * np.sin(2 * np.pi * 0.2 * time)))
    assert found.strouhal == pytest.approx(0.2, rel=2e-3)


def test_the_frequency_of_sound_is_no_strouhal_number() -> None:
    one = signal(0.2, 20, 0.01, 1)
    assert shedding(one, [0.18, 0.36, 0.6]).strouhal == pytest.approx(0.2, rel=1e-2)
    with pytest.raises(UserError, match=r"frequency of sound.*0\.2.*--sides slip"):
        shedding(one, [0.1, 0.203])


@pytest.mark.parametrize("part", [0.15, 1.0])
def test_sound_beside_the_vortices_is_heard(part: float) -> None:
    time = np.linspace(0, 150, 6000)
    vortices = 0.3 * np.sin(2 * np.pi * 0.16 * time)
    both = history(time, vortices + 0.3 * part * np.sin(2 * np.pi * 0.27 * time))
    sounds = [0.09, 0.27, 0.45]
    shed = shedding(history(time, vortices))
    assert coefficients.heard_sound(both, sounds, shed) == 0.27
    assert coefficients.heard_sound(history(time, vortices), sounds, shed) is None
    assert coefficients.heard_sound(history(time, vortices), sounds) is None
    noise = np.random.default_rng(0).standard_normal(6000)
    assert coefficients.heard_sound(history(time, vortices + 0.1 * noise), sounds, shed) is None
    assert coefficients.heard_sound(history(time, 1e-6 * np.sin(2 * np.pi * 0.27 * time)), sounds) is None
    assert coefficients.heard_sound(history(time[:5], vortices[:5]), sounds) is None


def test_the_lift_of_two_bodies_that_cancel_each_other_gives_no_strouhal_number() -> None:
    """What is left of the lift is not what the drag says."""
    time = np.linspace(0, 150, 6000)
    lift, drag = 0.01 * np.sin(2 * np.pi * 0.156 * time), 3 + 0.1 * np.sin(2 * np.pi * 0.209 * time)
    with pytest.raises(UserError, match=r"different frequencies: got 0\.156 of the lift, and 0\.209"):
        shedding(History(np.arange(6000), time, drag, lift))
    twice = 3 + 0.1 * np.sin(2 * np.pi * 0.312 * time)
    found = shedding(History(np.arange(6000), time, twice, lift))
    assert found.strouhal == pytest.approx(0.156, rel=1e-3)


@pytest.mark.parametrize(
    ("free", "quantile"),
    [(1, 12.7062), (2, 4.3027), (10, 2.2281), (11, 2.2010), (20, 2.0860), (30, 2.0423), (100, 1.9840)],
)
def test_students_quantiles(free: int, quantile: float) -> None:
    assert coefficients._student(free) == pytest.approx(quantile, rel=3e-4)


def test_the_csv_file_gives_the_samples_back(tmp_path: Path) -> None:
    time = np.linspace(0, 1, 7)
    one = History(np.arange(7) * 10, time, np.sqrt(time), -time / 3, time**2)
    coefficients.write_csv(one, tmp_path / "forces.csv")
    with open(tmp_path / "forces.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "time", "drag", "lift", "side"]
    assert [row["step"] for row in rows] == ["0", "10", "20", "30", "40", "50", "60"]
    for name, column in one.columns.items():
        np.testing.assert_array_equal([float(row[name]) for row in rows], column)
    with pytest.raises(UserError, match="cannot write"):
        coefficients.write_csv(one, tmp_path / "nowhere" / "forces.csv")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_the_plot_is_written(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"forces{suffix}"
    coefficients.plot(signal(0.2, 6, 0.0, 1), target, "Re 100")
    content = target.read_bytes()
    if suffix == ".png":
        assert content.startswith(b"\x89PNG")
    else:
        assert b"drag coefficient" in content
        assert b"lift coefficient" in content


def test_a_start_that_is_far_off_does_not_set_the_scale_of_the_plot() -> None:
    low, high = coefficients._limits(np.array([1e3, 50.0, 3.0, 3.1, 2.9, 3.0]))
    assert 2 < low < 2.9
    assert 3.1 < high < 4
    assert coefficients._limits(np.full(4, np.nan)) == (0, 1)
