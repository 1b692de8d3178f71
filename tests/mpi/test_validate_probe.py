"""The probe of a fleet by MPI's ranks: mpiexec -n 4 python -m pytest --with-mpi tests/mpi."""

from __future__ import annotations

import dataclasses
import math
import runpy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.validate import plan as validate_plan
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe import sampling
from meshrun.jobs.validate.probe.api import WrongData
from meshrun.jobs.validate.probe.buffers import fit_to_devices
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World, open_world

pytestmark = pytest.mark.mpi
same = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[1] / "unit/validate/probe/test_rank_probe.py"))
)
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few runs each, not of as many as take 0.1 s; and no waiting for what may pass."""
    monkeypatch.setattr(sampling, "CPU_SECONDS", 0.001)
    monkeypatch.setattr(sampling, "TOO_SHORT", math.inf)  # ranks that sleep do not mind what is stolen
    monkeypatch.setattr(validate_plan, "CPU_SPAN", 0.0)


@pytest.fixture
def world() -> Iterator[World]:
    opened = open_world("cpu")
    yield opened
    opened.close()


def on_rank_0(world: World, script: Callable[[Any], Any]) -> Any:
    """What `script` returns there, on every rank, so that all fail alike."""
    return world.control.broadcast(same.lead_or_follow(world, script))


def needs(world: World, size: int) -> None:
    if world.size < size:
        pytest.skip(f"needs {size} ranks")


@pytest.mark.mpi_library
def test_everything_is_measured_and_right(world: World) -> None:
    assert same.unlike_everything(on_rank_0(world, same.everything), world.size) == []


@pytest.mark.parametrize("nbytes", [KIB, 5 * MIB])
def test_large_and_small_flows_and_rings(world: World, nbytes: int) -> None:
    """Messages that MPI sends at once, and those that wait for the receiver."""
    needs(world, 2)

    def script(probe: Any) -> Any:
        flows = [probe.flows([flow], nbytes, 2) for flow in ((0, world.size - 1), (world.size - 1, 0))]
        flows.append(probe.flows([(rank, rank ^ 1) for rank in range(world.size // 2 * 2)], nbytes, 2))
        return flows, probe.rings([[1, 0]], nbytes, 2), probe.wrong_data()

    flows, rings, wrong = on_rank_0(world, script)
    assert [found.shape for found in flows] == [(1, 2), (1, 2), (world.size // 2 * 2, 2)]
    assert all((found > 0).all() for found in (*flows, rings))
    assert wrong == []


def test_a_slow_rank_is_a_slow_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(world, 3)
    clock, slow = same.simulated_clock(monkeypatch), world.size - 1
    same.slow_alone(monkeypatch, lambda world: clock.spend(0.1 * (world.rank == slow)))
    if world.rank == slow:
        same.alter(world, KIB, lambda call: clock.spend(0.1))

    def script(probe: Any) -> Any:
        flows = [(0, 1), (slow, 0)]
        return (
            probe.single_rank("memory", KIB, 3),
            probe.flows(flows, KIB, 3),
            probe.rings([[0, 1], [slow]], KIB, 3),
        )

    single_rank, flows, rings = on_rank_0(world, script)
    assert single_rank == pytest.approx(np.array([[0.001] * 3] * slow + [[0.101] * 3]))
    for found in flows, rings:
        assert found == pytest.approx(np.array([[0.001] * 3, [0.101] * 3]))


def test_a_real_clock_measures(world: World) -> None:
    needs(world, 2)
    if world.rank == 1:
        same.alter(world, KIB, lambda call: time.sleep(0.02))
    assert (on_rank_0(world, lambda probe: probe.flows([(0, 1)], KIB, 2)) >= 0.02).all()


def test_a_flipped_bit_is_named(world: World) -> None:
    needs(world, 2)
    if world.rank == 1:
        same.alter(world, 100 * KIB, same.flip(77_777))

    def script(probe: Any) -> Any:
        probe.flows(same.circle(world.size), 100 * KIB, 1)
        flows = probe.wrong_data()
        probe.rings([range(world.size)], 100 * KIB, 1)
        return flows, probe.wrong_data()

    (flow,), (ring,) = on_rank_0(world, script)
    expected = WrongData("flows", 1, 0, 100 * KIB, 77_777, 1, flow.got, flow.expected)
    assert flow == expected
    assert flow.got != flow.expected
    assert ring == dataclasses.replace(
        expected, what="rings", source=None, got=ring.got, expected=ring.expected
    )


def test_the_order_of_a_ring(world: World) -> None:
    backward = tuple(reversed(range(world.size)))
    assert same.in_groups_of(world, (backward,)) == list(backward)
    if world.size > 2:
        found = same.in_groups_of(world, ((2, 0),))
        assert found == ([2, 0] if world.rank in (0, 2) else None)


@pytest.mark.mpi_library
def test_more_groups_than_stay_open(world: World) -> None:
    """MPI has room for few communicators that are never freed."""

    def script(probe: Any) -> Any:
        for turn in range(40):
            order = np.roll(np.arange(world.size), turn % 7).tolist()
            probe.rings([order], KIB, 1)
            probe.rings([[turn % world.size]], KIB, 1)
        return probe.wrong_data()

    assert on_rank_0(world, script) == []


@pytest.mark.mpi_library
def test_rank_0s_error_ends_all_ranks(world: World) -> None:
    def script(probe: Any) -> None:
        probe.single_rank("memory", KIB, 1)
        raise UserError("no such baseline")

    with pytest.raises(UserError, match="no such baseline") as caught:
        same.lead_or_follow(world, script)
    assert caught.value.everywhere
    # And the ranks are where they were: they can begin anew.
    assert same.unlike_everything(on_rank_0(world, same.everything), world.size) == []


def test_too_little_memory_on_one_rank(world: World) -> None:
    last = world.size - 1
    if world.rank == last:
        world.backend.free_memory = lambda: 0
    with pytest.raises(UserError, match=rf"\[rank {last}, .*\] not enough memory") as caught:
        same.lead_or_follow(world, lambda probe: probe.single_rank("memory", KIB, 1))
    assert caught.value.everywhere


@pytest.mark.parametrize("healthy", [True, False])
def test_the_whole_ladder(world: World, healthy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a verdict, on sizes that fit."""
    if not healthy:
        needs(world, 3)
    clock, slow = same.simulated_clock(monkeypatch), world.size - 1
    same.slow_alone(monkeypatch, lambda world: clock.spend(0.001 * (world.rank == slow and not healthy)))
    plan = fit_to_devices(
        world,
        Plan(
            rungs=("gpu", "pairs", "node", "all"), keep_going=True, samples=3, retest_samples=3,
            max_retests=1, memory_bytes=MIB, product_bytes=64 * KIB, pair_bytes=MIB, ring_bytes=MIB,
        ),
    )  # fmt: skip
    verdict = on_rank_0(world, lambda probe: climb_ladder(probe, plan))
    results = {rung.name: rung.result for rung in verdict.rungs if rung.result != "not measured"}
    measured = ("gpu", "pairs", "node", "all") if world.size > 1 else ("gpu",)
    assert results == {**dict.fromkeys(measured, "ok"), "gpu": "ok" if healthy else "broken"}
    assert [one.ranks for one in verdict.findings] == ([] if healthy else [(slow,)])
    assert verdict.status == ("ok" if healthy else "critical")
    rates = {rung.name: rung.rates for rung in verdict.rungs}
    assert rates["gpu"] == pytest.approx({"memory": 2 * MIB / 0.001, "product": 2 * 128**3 / 0.001})
