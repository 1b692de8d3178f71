"""The probe of a fleet on GPUs: on one in this process, and on as many as there are through the launcher.

Run as a program this file is one rank of those: `mpiexec -n 2 python tests/gpu/test_validate_gpu.py FILE`
puts what they found into FILE.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun import World
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe import single_rank
from meshrun.jobs.validate.probe.api import SINGLE_RANK_OPS
from meshrun.jobs.validate.probe.buffers import fit_to_devices
from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.runner.errors import MeshrunError, UserError

ROOT = Path(__file__).parents[2]
same = SimpleNamespace(
    **runpy.run_path(str(ROOT / "tests" / "unit" / "validate" / "probe" / "test_rank_probe.py"))
)

DEADLOCK = 110  # seconds
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LARGE = {
    "memory": GIB,
    "product": 64 * MIB,
    "tensor": 128 * MIB,
    "to_device": 256 * MIB,
    "to_host": 256 * MIB,
}
ODD = 5 * MIB + 3  # no multiple of anything
Json = dict[str, Any]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    opened = meshrun.open_world("cuda")
    yield opened
    opened.close()


def alone(probe: Any, nbytes: Any) -> Json:
    found = {what: probe.single_rank(what, nbytes(what), 5) for what in SINGLE_RANK_OPS}
    return found | {"wrong": probe.wrong_data()}


def test_everything_is_measured_and_right(world: World) -> None:
    assert same.unlike_everything(same.lead_or_follow(world, same.everything), 1) == []


@pytest.mark.parametrize("nbytes", [4 * KIB, ODD])
def test_small_and_odd_sizes(world: World, nbytes: int) -> None:
    found = same.lead_or_follow(world, lambda probe: alone(probe, lambda what: nbytes))
    assert found.pop("wrong") == []
    assert all(seconds.shape == (1, 5) and (seconds > 0).all() for seconds in found.values())


def test_rates_are_those_of_a_gpu(world: World) -> None:
    found = same.lead_or_follow(world, lambda probe: alone(probe, LARGE.__getitem__))
    assert found.pop("wrong") == []
    seconds = {what: float(np.median(found[what])) for what in SINGLE_RANK_OPS}
    rates = {what: LARGE[what] / seconds[what] for what in SINGLE_RANK_OPS}
    peak = world.here.device.bandwidth
    if peak:
        assert 0.4 * peak < 2 * rates["memory"] < 1.02 * peak
    for way in ("to_device", "to_host"):
        assert 2e9 < rates[way] < rates["memory"], "over PCIe or NVLink-C2C"
    side = 4096
    assert 2 * side**3 / seconds["product"] > 1e12, "operations a second: cuBLAS, not the host"
    assert 2 * (2 * side) ** 3 / seconds["tensor"] > 1e14, "tensor cores"


@pytest.mark.parametrize("what", SINGLE_RANK_OPS)
def test_a_flipped_bit_alone(world: World, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device, or in the host's pinned memory: where the copy went."""
    timed, reserve = single_rank.backend_seconds, single_rank.ProbeBuffers.reserve
    held: list[Any] = []

    def reserving(buffers: Any, *nbytes: int) -> None:
        reserve(buffers, *nbytes)
        held.append(buffers)

    def flipping(world: World, queue: Any, count: int = 1) -> float:
        seconds = timed(world, queue, count)
        buffers = held[-1]
        to_host = what == "to_host"
        target = buffers.box.host_array(buffers.pinned) if to_host else buffers.into.array
        target[777_777] ^= 16
        return seconds

    monkeypatch.setattr(single_rank.ProbeBuffers, "reserve", reserving)
    monkeypatch.setattr(single_rank, "backend_seconds", flipping)

    def script(probe: Any) -> Any:
        probe.single_rank(what, MIB, 2)
        return probe.wrong_data()

    found = same.lead_or_follow(world, script)
    assert len(found) == 2
    for one in found:
        assert (one.what, one.rank, one.source, one.nbytes) == (what, 0, 0, MIB)
        assert (one.offset, one.count) == (777_777, 1)
        assert one.got != one.expected


def test_more_than_the_gpu_has(world: World) -> None:
    with pytest.raises(UserError, match=r"\[rank 0, host .*, GPU 0\] not enough memory"):
        same.lead_or_follow(world, lambda probe: probe.single_rank("memory", world.here.device.memory, 1))


def test_sizes_leave_room(world: World) -> None:
    free = world.backend.free_memory()
    plan = fit_to_devices(world, Plan(memory_bytes=1 << 50, product_bytes=1 << 50))
    assert 0.2 * free < plan.memory_bytes < 0.5 * free
    assert plan.product_bytes <= plan.memory_bytes // 2
    assert plan.pair_bytes == Plan().pair_bytes


def test_one_gpu_climbs_the_ladder(world: World) -> None:
    plan = fit_to_devices(world, Plan(memory_bytes=256 * MIB, samples=3))
    verdict = same.lead_or_follow(world, lambda probe: climb_ladder(probe, plan))
    results = {rung.name: rung.result for rung in verdict.rungs}
    assert results["gpu"] == results["host"] == "ok"
    assert verdict.status == "ok"
    assert verdict.not_judged[0].startswith("one rank")


# Several GPUs


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """What the ranks of this file, run as a program, found."""
    gpus = pytest.importorskip("cupy", reason="needs CuPy").cuda.runtime.getDeviceCount()
    if gpus < 2:
        pytest.skip("needs two GPUs")
    try:
        launcher = mpi_launcher.find()
    except MeshrunError as reason:
        pytest.skip(str(reason))
    record = tmp_path_factory.mktemp("ranks") / "found.json"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        base = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        ranks = 4 if gpus >= 4 else 2
        done = subprocess.run(
            [*launcher.command(ranks), sys.executable, __file__, str(record)],
            env=launcher.environment(ranks, base, Path(folder)),
            capture_output=True,
            text=True,
            timeout=DEADLOCK,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return {**json.loads(record.read_text()), "ranks": ranks}


def test_ranks_measure_and_are_right(found: Json) -> None:
    assert found["faults"] == []
    assert found["wrong"] == []
    assert all(rate > 1e9 for rate in found["rates"].values()), found["rates"]


def test_ranks_name_a_flipped_bit(found: Json) -> None:
    flow, ring = found["flipped"]
    assert (flow["what"], flow["rank"], flow["source"], flow["offset"], flow["count"]) == (
        "flows",
        1,
        0,
        77_777,
        1,
    )
    assert (ring["what"], ring["rank"], ring["source"], ring["offset"], ring["count"]) == (
        "rings", 1, None, 77_777, 1,
    )  # fmt: skip


def test_ranks_name_a_byte_that_a_copy_left_out(found: Json) -> None:
    (wrong,) = found["cut"]
    assert (wrong["what"], wrong["rank"], wrong["source"]) == ("copies", 1, 0)
    assert (wrong["offset"], wrong["count"]) == (100 * KIB - 1, 1)


def test_the_order_of_a_ring(found: Json) -> None:
    assert found["order"] == list(reversed(range(found["ranks"])))


def test_ranks_climb_the_ladder(found: Json) -> None:
    assert set(found["rungs"]) >= {"gpu", "host", "pairs", "node", "all"}
    assert found["status"] in ("ok", "warning", "critical")


def survey(world: World) -> Json:
    """On rank 0, what the tests above want to know; collective."""
    size, nbytes = world.size, 256 * MIB

    def healthy(probe: Any) -> Json:
        faults = same.unlike_everything(same.everything(probe), size)
        seconds = {
            "one flow": probe.flows([(0, 1)], nbytes, 5),
            "both ways": probe.flows([(0, 1), (1, 0)], nbytes, 5),
            "ring": probe.rings([range(size)], nbytes, 5),
            "one copy": probe.copies([(0, 1)], nbytes, 5),
            "copies both ways": probe.copies([(0, 1), (1, 0)], nbytes, 5),
        }
        probe.copies([(1, 0)], ODD, 2)
        faults += [barred for barred in [probe.copies_unavailable()] if barred]
        probe.flows([(1, 0)], ODD, 2)
        probe.rings([[1, 0]], ODD, 2)
        rates = {name: nbytes / float(np.median(found)) for name, found in seconds.items()}
        return {"faults": faults, "rates": rates, "wrong": [str(one) for one in probe.wrong_data()]}

    def flipped(probe: Any) -> Json:
        probe.flows(same.circle(size), 100 * KIB, 1)
        flow = probe.wrong_data()
        probe.rings([range(size)], 100 * KIB, 1)
        return {"flipped": [dataclasses.asdict(one) for one in (*flow, *probe.wrong_data())]}

    def cut(probe: Any) -> Json:
        probe.copies([(0, 1), (1, 0)], 100 * KIB, 1)
        return {"cut": [dataclasses.asdict(one) for one in probe.wrong_data()]}

    plan = fit_to_devices(
        world, Plan(keep_going=True, memory_bytes=256 * MIB, samples=3, retest_samples=5, max_retests=1)
    )

    def climbs(probe: Any) -> Json:
        verdict = climb_ladder(probe, plan)
        measured = [rung.name for rung in verdict.rungs if rung.result != "not measured"]
        return {"rungs": measured, "status": verdict.status}

    parts = [same.lead_or_follow(world, healthy), same.lead_or_follow(world, climbs)]
    order = same.in_groups_of(world, (tuple(reversed(range(size))),))
    if world.rank == 1:
        same.alter(world, 100 * KIB, flip_on_device)
    parts.append(same.lead_or_follow(world, flipped))
    if world.rank == 0:
        lose_last_bytes()
    parts.append(same.lead_or_follow(world, cut))
    return {"order": order} | {name: value for part in parts for name, value in (part or {}).items()}


def lose_last_bytes() -> None:
    """Of this rank's copies, from now on."""
    from meshrun.runner.device.raw.cuda_memory import Box

    whole = Box.copy

    def copy(box: Box, target: Any, source: Any, nbytes: int, stream: Any) -> None:
        whole(box, target, source, nbytes - 1, stream)

    Box.copy = copy  # type: ignore[method-assign]


def flip_on_device(call: Any) -> None:
    """Queued behind the call, on the same stream."""
    call.recv.bytes(77_778)[77_777:] ^= 1


def main(target: str) -> None:
    world = meshrun.open_world("cuda")
    found = survey(world)
    if world.rank == 0:
        Path(target).write_text(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(sys.argv[1])
