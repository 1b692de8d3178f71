"""The kernels on links of a body's surface, compiled for the host: NumPy's bits."""

from __future__ import annotations

from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any

import host_kernels
import numpy as np
import pytest
import surfaces

from meshrun.jobs.airflow import links as links_module
from meshrun.jobs.airflow.lattice import D2Q9, D3Q19, D3Q27, Lattice
from meshrun.jobs.airflow.links import Links, find_links, momentum, set_slots
from meshrun.jobs.airflow.shapes.bodies import Body, Round
from meshrun.jobs.airflow.shapes.surface import Surface
from meshrun.runner.region import Region

FAKE_CUPY: Any = ModuleType("cupy")
FAKE_CUPY.zeros, FAKE_CUPY.asarray, FAKE_CUPY.asnumpy = np.zeros, np.asarray, np.asarray
FAKE_CUPY.cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))

CASES = [
    (Round("", (20, 26), 11.0, 11.0, (9.3, 11.8), 5.5), D2Q9),
    (Round("", (14, 15, 16), 9.0, 1.0, (6.2, 7.1, 7.9), 4.5), D3Q19),
    (Surface("", (14, 15, 16), 9.0, 1.0, surfaces.sphere(2)[..., ::-1] * 4.5 + [6.2, 7.1, 7.9]), D3Q27),
]


def moved(links: Links) -> Links:
    found = links.on(FAKE_CUPY)
    for one in fields(links):
        np.testing.assert_array_equal(getattr(found, one.name), getattr(links, one.name))
    return found


@pytest.mark.usefixtures("kernels_on_host")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("body", "lattice"), CASES)
def test_kernels_give_numpys_bits(body: Body, lattice: Lattice, dtype: str) -> None:
    shape = tuple(n + 2 for n in body.shape)
    random = np.random.default_rng(0)
    state = [random.uniform(-0.1, 0.1, shape).astype(dtype) for _ in range(lattice.size)]
    found = find_links(body, Region((0,) * lattice.axes, body.shape), lattice)
    device = [one.copy() for one in state]
    set_slots(state, found)
    set_slots(device, moved(found), FAKE_CUPY)
    np.testing.assert_array_equal(np.array(device).view(np.uint8), np.array(state).view(np.uint8))
    state[3][...] *= np.where(random.random(shape) < 0.5, 1e4, 1)
    expected = momentum(state, found, lattice, scale=0.75)
    assert expected[-1] > 0
    table = links_module.addresses(FAKE_CUPY, state)
    for given in (None, table):
        np.testing.assert_array_equal(momentum(state, found, lattice, FAKE_CUPY, 0.75, given), expected)


def test_the_kernels_limits_are_numpys() -> None:
    text = (host_kernels.KERNELS / "links.cu").read_text()
    assert f"THREADS = {links_module.THREADS}," in text
    assert f"UNIT = {links_module.UNIT:.1f};" in text
    assert f"LARGEST = {links_module.LARGEST};" in text
