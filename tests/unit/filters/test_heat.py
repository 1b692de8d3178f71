"""Heat in several materials, against exact solutions; refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_runs import stepped

from meshrun.jobs.filters.heat import heat
from meshrun.runner.errors import UserError

AXES = pytest.mark.parametrize("axes", [1, 2, 3])


@AXES
def test_a_sine_decays_at_the_discrete_rate(axes: int) -> None:
    """The second difference of sin(k x) is -4 sin(k / 2)^2 sin(k x)."""
    length, diffusivity, dt, steps = 16, 0.8, 0.15, 15
    k = 2 * np.pi / length * np.arange(1, axes + 1)
    cells = np.meshgrid(*[np.arange(length)] * axes, indexing="ij")
    mode = np.prod([np.sin(one * x) for one, x in zip(k, cells, strict=True)], axis=0)
    found = replace(heat, boundary="wrap").iterate(
        mode, np.full_like(mode, diffusivity), np.zeros_like(mode), steps=steps, dt=dt, largest=0.8
    )
    factor = 1 - dt * diffusivity * float(np.sum(4 * np.sin(k / 2) ** 2))
    np.testing.assert_allclose(found, factor**steps * mode, rtol=0, atol=1e-12)
    rate = -np.log(factor) / dt  # nears that of the heat equation, diffusivity * k^2, in fine cells
    assert rate == pytest.approx(diffusivity * np.sum(k**2), rel=0.25)
    assert 0.01 < abs(found).max() < 0.8


def test_a_sine_decays_at_the_rate_of_the_heat_equation_with_second_order() -> None:
    errors = []
    for length in (16, 32, 64):
        k, steps = 2 * np.pi / length, length**2 // 16
        mode = np.sin(k * np.arange(length))
        found = replace(heat, boundary="wrap").iterate(
            mode, np.ones(length), np.zeros(length), steps=steps, dt=0.1
        )
        errors.append(np.log((found * mode).sum() / (mode * mode).sum()) / (-(k**2) * 0.1 * steps) - 1)
    assert errors[0] / errors[1] == pytest.approx(4, abs=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, abs=0.2)


@pytest.mark.parametrize(("boundary", "kept"), [("reflect", True), ("nearest", True), ("mirror", False)])
def test_nothing_passes_the_edges_of_two_boundaries(boundary: str, kept: bool) -> None:
    field = np.random.default_rng(0).random((6, 7))
    found = replace(heat, boundary=boundary).iterate(
        field, np.ones_like(field), np.zeros_like(field), steps=20, dt=0.2
    )
    assert (abs(found.sum() - field.sum()) < 1e-12) == kept


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_source_between_layers_becomes_steady(axis: int) -> None:
    """Layers between a source and a sink: the flow through every face is known."""
    length = 8
    spreads = np.where(np.arange(length) < 5, 1.0, 0.25)
    source = np.zeros(length)
    source[0], source[-1] = 0.3, -0.3
    shape = [2, 2, 2]
    shape[axis] = length
    place = [None, None, None]

    def along(values: Any) -> Any:
        index: list[Any] = list(place)
        index[axis] = slice(None)
        return np.ascontiguousarray(np.broadcast_to(values[tuple(index)], shape))

    found = heat.iterate(along(np.zeros(length)), along(spreads), along(source), steps=2500, dt=0.16)
    resistance = 0.5 / spreads[1:] + 0.5 / spreads[:-1]  # of two half cells, one after the other
    expected = -0.3 * np.concatenate([[0], np.cumsum(resistance)])
    np.testing.assert_allclose(found, along(expected - expected.mean()), rtol=0, atol=1e-9)


def test_a_source_adds_what_it_gives_and_nothing_passes_a_cell_without_diffusivity() -> None:
    random = np.random.default_rng(0)
    field, source = random.random((9, 11)), random.random((9, 11))
    diffusivity = random.random((9, 11))
    diffusivity[:, 5] = 0
    found = heat.iterate(field, diffusivity, source, steps=50, dt=0.2)
    for part in (np.s_[:, :5], np.s_[:, 6:]):
        assert found[part].sum() == pytest.approx(field[part].sum() + 10 * source[part].sum(), rel=1e-12)
    np.testing.assert_allclose(found[:, 5], field[:, 5] + 10 * source[:, 5], rtol=1e-12)


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_and_one_kernel_give_the_same_bits(tmp_path: Path, ranks: int) -> None:
    random = np.random.default_rng(1)
    arrays = [random.random((9, 8, 7)).astype("float32") for _ in range(3)]
    expected = heat.iterate(*arrays, steps=11)
    for fuse in ("off", "require"):
        (found,), record = stepped(tmp_path, heat, arrays, 11, ranks=ranks, fuse=fuse, verify="full")
        np.testing.assert_array_equal(found, expected)
        assert record["verify"]["mode"] == "full"
    assert found.dtype == np.float32


@AXES
def test_the_longest_step_is_stable_and_a_longer_one_is_refused(axes: int) -> None:
    field = np.indices((6,) * axes).sum(axis=0) % 2.0  # the mode that grows first
    arrays = field, np.full(field.shape, 2.0), np.zeros(field.shape)
    most = 1 / (4 * axes)
    assert abs(heat.iterate(*arrays, steps=99, dt=most, largest=2.0)).max() <= 1
    with pytest.raises(UserError, match="too long") as refused:
        heat.iterate(*arrays, steps=1, dt=1.01 * most, largest=2.0)
    hint = float(str(refused.value).rpartition("dt=")[2])
    assert 0.98 * most < hint <= most
    heat.iterate(*arrays, steps=1, dt=hint, largest=2.0)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_diffusivity_beyond_the_largest_shows(value: float) -> None:
    diffusivity = np.ones((5, 5))
    diffusivity[2, 2] = value
    found = heat.iterate(np.zeros((5, 5)), diffusivity, np.zeros((5, 5)), steps=1)
    assert np.isnan(found[2, 2])


@pytest.mark.parametrize(
    ("shape", "dtype", "parameters", "text"),
    [
        ((4, 4), "int32", {}, "floating point"),
        ((2, 2, 2, 2), "float32", {}, "axes"),
        ((4, 4), "float32", {"dt": -1.0}, "positive"),
        ((4, 4), "float32", {"largest": float("nan")}, "positive"),
    ],
)
def test_what_it_cannot_compute_is_refused(shape: Any, dtype: str, parameters: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        heat.iterate(*[np.zeros(shape, dtype)] * 3, steps=1, **parameters)


@pytest.mark.parametrize("fuse", ["require", "off"])
@pytest.mark.parametrize(("field", "others"), [("float32", "float64"), ("float64", "float32")])
def test_the_field_keeps_its_dtype_whatever_the_others_have(
    tmp_path: Path, field: str, others: str, fuse: str
) -> None:
    """So that steps can be taken."""
    rng = np.random.default_rng(3)
    start, spread, source = rng.random((9, 8)).astype(field), *rng.random((2, 9, 8)).astype(others)
    (found,), _ = stepped(tmp_path, heat, [start, spread, source], 3, fuse=fuse, ranks=2)
    assert found.dtype == field
    expected = start
    for _ in range(3):
        expected = heat(expected.astype("f8"), spread.astype("f8"), source.astype("f8")).astype(field)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
