"""Loops and conditions on values in functions with transforms, compared with NumPy, on ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.programs.spectral.spectral_run import SpectralRun
from tests.unit.programs.test_spectral import check, field

MANY = 20  # iterations, too many to be traced one by one


def smoothed(u: Any, factor: Any = 0.9) -> Any:
    return np.fft.irfft2(np.fft.rfft2(u) * factor, u.shape)


def solved(u: Any) -> Any:
    """The solution of x - laplace(x) = u."""
    n, m = u.shape
    kx, ky = np.fft.rfftfreq(m), np.fft.fftfreq(n)[:, None]
    return np.fft.irfft2(np.fft.rfft2(u) / (1 + kx**2 + ky**2), u.shape)


def picard(u: Any) -> Any:
    change, x = 1.0, np.zeros_like(u)
    while change > 1e-8:
        new = solved(0.1 * u - 0.1 * x * x)
        change = np.max(np.abs(new - x))
        x = new
    return x


def counted(u: Any) -> Any:
    for _ in range(MANY):
        u = smoothed(u) + 0.01 * np.roll(u, 1, 0)
    return u


def in_time(u: Any) -> Any:
    """The host makes numbers for each iteration."""
    t = 0.0
    for k in range(MANY):
        u = smoothed(u, np.exp(-t)) + 0.01 * np.sin(k)
        t += 0.01
    return u + t


def of_spectra(u: Any) -> Any:
    """The state is a spectrum, and so is what the condition is computed of."""
    spectrum, forcing = np.fft.rfft2(u), np.fft.rfft2(np.cos(u))
    while np.max(np.abs(spectrum)) > 40:
        w = np.fft.irfft2(spectrum, u.shape)
        spectrum = 0.9 * spectrum + 1e-3 * np.fft.rfft2(w * w) - 0.01 * forcing
    return np.fft.irfft2(spectrum, u.shape)


def written(u: Any) -> Any:
    """Memory of both spaces is written in place."""
    u, spectrum = u.copy(), np.fft.rfft2(u)
    while np.sum(u * u) > 10:
        spectrum *= 0.8
        spectrum[0, 0] = 1
        u[1:-1] = np.fft.irfft2(spectrum, u.shape)[:-2]
        u[0] = u[-1] = 0
    return u + np.fft.irfft2(spectrum, u.shape)


def nested(u: Any) -> Any:
    total = np.float64(0)
    for k in range(MANY):
        size = np.max(np.abs(u))
        while size > 1 + 0.01 * k:
            u = smoothed(u)
            size = np.max(np.abs(u))
            total = total + size
        u = u * 1.05
    return u + total


def broken(u: Any) -> Any:
    for _ in range(MANY):
        u = smoothed(u)
        if np.max(u) < 1:
            break
    return u


def returned(u: Any) -> Any:
    for _ in range(MANY):
        u = smoothed(u)
        if np.max(u) < 1:
            return u * 2
    return u


def swapped(u: Any) -> Any:
    v = smoothed(u, 0.5)
    while np.max(np.abs(u)) > 0.3:
        u, v = v, smoothed(u) * 0.7
    return u + 2 * v


def without_transforms(u: Any) -> Any:
    """The loop is beside transforms, and none is in it."""
    u = smoothed(u)
    while np.max(np.abs(u)) > 0.5:
        u = 0.5 * u + 0.2 * (np.roll(u, 1, 0) + np.roll(u, -1, 0))
    return smoothed(u)


def never(u: Any) -> Any:
    left, v = np.float64(0), u.copy()
    while np.max(u) < -100:
        v = smoothed(v)
        left = left + 1
    return v + left


def made_within(u: Any) -> Any:
    """What follows the loop reads arrays that its last iteration made."""
    while np.max(np.abs(u)) > 0.5:
        half = smoothed(u, 0.4)
        u = half + 0.3 * u
    return half + u


def with_mean(u: Any) -> Any:
    """The state has a complex number."""
    mean, size = np.complex128(0), np.float64(10)
    while size > 1:
        u = smoothed(u)
        mean = mean + np.sum(np.fft.fft2(u) * (1 + 0.5j)) * 1e-3
        size = np.max(np.abs(u))
    return u + mean.real - 2 * mean.imag


def chosen(u: Any) -> Any:
    """A branch that is too long to be computed in vain."""
    if np.max(u) > 1:
        for _ in range(MANY):
            u = smoothed(u)
    else:
        u = u * 0
    return u


def real_parts(u: Any) -> Any:
    """Parts of complex arrays take the place of an array that is none, and are written."""
    v = u * 0
    while np.max(np.abs(u)) > 0.5:
        u = np.fft.ifft2(np.fft.fft2(u) * (0.7 + 0.1j)).real
        v = np.fft.ifft2(np.fft.fft2(u)).imag
        u[0] = 0
    return u + v


def two_loops(u: Any) -> Any:
    while np.max(np.abs(u)) > 1.5:
        u = smoothed(u)
    spectrum = np.fft.fft2(u)
    while np.sum(np.abs(spectrum)) > 100:
        spectrum = np.fft.fft2(np.fft.ifft2(spectrum).real * 0.8)
    return np.fft.ifft2(spectrum).real + u


def multiplied(u: Any) -> Any:
    """A power iteration: products in place of transforms."""
    v, change = u, np.float64(1)
    while change > 1e-6:
        new = u @ v
        new = new / np.sqrt(np.sum(new * new))
        change, v = np.max(np.abs(new - v)), new
    return v


def with_helpers(u: Any) -> Any:
    """Runge and Kutta's steps of a spectrum, in functions of their own; the wave numbers are from outside."""
    spectrum, (n, m) = np.fft.rfft2(u), u.shape
    waves = np.fft.rfftfreq(m) + np.fft.fftfreq(n)[:, None]
    for _ in range(MANY):
        spectrum = step(spectrum, u.shape, waves)
    return np.fft.irfft2(spectrum, u.shape)


def step(spectrum: Any, shape: Any, waves: Any) -> Any:
    change = slope(spectrum, shape, waves)
    return spectrum + 0.05 * (change + slope(spectrum + 0.1 * change, shape, waves))


def slope(spectrum: Any, shape: Any, waves: Any) -> Any:
    w = np.fft.irfft2(spectrum, shape)
    return -0.1 * waves * spectrum + 1e-3 * np.fft.rfft2(w * w)


def in_a_list(u: Any) -> Any:
    both = [np.fft.rfft2(u), np.fft.rfft2(u * u)]
    for _ in range(MANY):
        one, other = both
        both = [0.9 * one + 0.1 * other, 0.9 * other - 0.1 * one]
    return np.fft.irfft2(both[0] + both[1], u.shape)


def with_few_within(u: Any) -> Any:
    """Iterations that are traced one by one, and conditions, in a loop."""
    while np.sum(np.abs(u)) > 1:
        for k in range(3):
            u = smoothed(u, 0.9 - 0.1 * k)
        u = u * 0.5 if np.max(u) > 1 else smoothed(u, 0.8)
    return u


def with_points(u: Any) -> Any:
    ys, xs, each = np.array([0, 5, 7]), np.array([0, 4, 2]), np.array([0.1, 0.2, 0.3])
    u[ys, xs] += each * np.max(u)
    while np.max(np.abs(u)) > 1.5:
        u = smoothed(u)
        u[ys, xs] += 0.1 * each * np.min(u)
    return u


def with_edges(u: Any) -> Any:
    """Neighbours in a spectrum, and rows of it that are written."""
    spectrum = np.fft.rfft2(u)
    while np.max(np.abs(spectrum)) > 3:
        spectrum[1:-1] = spectrum[1:-1] * 0.9 + 0.01 * (spectrum[2:] - spectrum[:-2])
        spectrum[0] *= 0.5
        spectrum[-1] = 0
    return np.fft.irfft2(spectrum, u.shape)


def adaptive(u: Any) -> Any:
    t, steps = np.float64(0), 0
    while t < 1 and steps < 50:
        dt = 0.3 / (1 + np.max(np.abs(u)))
        u = smoothed(u, np.exp(-dt))
        t, steps = t + dt, steps + 1
    return u * t + steps


LOOPS = (
    picard,
    counted,
    in_time,
    of_spectra,
    written,
    nested,
    broken,
    returned,
    swapped,
    without_transforms,
    never,
    made_within,
    with_mean,
    chosen,
    two_loops,
    with_points,
    with_helpers,
    in_a_list,
    with_few_within,
    with_edges,
    adaptive,
    real_parts,
)


@pytest.mark.parametrize("function", LOOPS, ids=lambda one: one.__name__)
def test_loops_with_transforms(function: Any) -> None:
    program = check(function, field(8, 6, seed=3))
    assert program.loop_steps


def of_a_part_that_two_names_see(u: Any) -> Any:
    wave = u + 0j
    while np.max(np.abs(u)) > 0.5:
        wave = np.fft.ifft2(np.fft.fft2(u) * 0.7)
        u = wave.real
        u[0] = 0
    return u + wave.real


def test_a_part_whose_array_has_a_name_is_refused_with_the_cure() -> None:
    with pytest.raises(NotTraceable, match=r"becomes .*, the real part of an array") as refused:
        check(of_a_part_that_two_names_see, field(8, 6, seed=3))
    assert ".real.copy()" in refused.value.hint


def read_long_after(u: Any) -> Any:
    """After an odd number of iterations, what the loop leaves is read beside what is computed of it."""
    for _ in range(MANY + 1):
        u = smoothed(u) + 0.01 * np.roll(u, 1, 0)
    v = smoothed(u * u)
    w = smoothed(np.roll(v, 1, 0) * u)
    return smoothed(np.roll(w, 1, 0) * v) + np.roll(u, 1, 0)


def with_two_fields(u: Any) -> Any:
    """What an iteration leaves of one field is read from beside it: both blocks have a halo."""
    v = np.zeros_like(u)
    for _ in range(MANY):
        w = smoothed(u)
        u = 0.5 * (w + np.roll(v, 1, 0)) + 0.1 * smoothed(v)
        v = w - np.roll(u, 1, 1)
    return u + v


@pytest.mark.parametrize("function", [counted, picard, of_spectra, with_two_fields, nested])
def test_iterations_copy_no_array(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an iteration leaves changes places with what it has found; cells are copied before the first."""
    copies = dict[tuple[int, int | None, int], int]()
    pass_on = SpectralRun._pass_on

    def counting(run: SpectralRun, source: int | None, target: int) -> None:
        if run.program.shared[target].shape:
            key = run.world.rank, source, target
            copies[key] = copies.get(key, 0) + 1
        pass_on(run, source, target)

    monkeypatch.setattr(SpectralRun, "_pass_on", counting)
    program = check(function, field(8, 6, seed=3), grids=[(2, 1)])
    assert program.loop_steps
    within = any(one.steps > other.steps for one in program.loop_steps for other in program.loop_steps)
    assert 0 < max(copies.values()) <= (MANY if within else 1)


@pytest.mark.parametrize("function", [read_long_after, with_two_fields])
def test_blocks_that_change_places_are_not_shared(function: Any) -> None:
    program = check(function, field(8, 6, seed=3))
    assert program.loop_steps


def test_loops_with_products() -> None:
    program = check(multiplied, np.abs(field(7, 7)) + np.eye(7))
    assert program.loop_steps
    assert program.products
