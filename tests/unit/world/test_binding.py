"""Where a rank runs: near its GPU, unless a launcher has said where."""

from __future__ import annotations

import os

import pytest

from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.system.launcher import BY_HAND
from meshrun.runner.world.preflight.inspection import cores_near_gpu, preflight
from meshrun.runner.world.preflight.survey import GpuFacts, Survey
from meshrun.runner.world.world import Rank, open_world


def survey(cpus: range, near: range | None) -> Survey:
    gpu = None if near is None else GpuFacts("H200", "GPU-1", "0:1", 0, cpus=tuple(near))
    return Survey(0, "n1", "n1/1", 0, 4711, gpu=gpu, cpus=tuple(cpus))


@pytest.mark.parametrize(
    ("cpus", "near", "moved"),
    [
        (range(64), range(32, 64), range(32, 64)),  # free: it moves
        (range(32, 64), range(32, 64), ()),  # there already
        (range(32, 40), range(32, 64), ()),  # a launcher has bound it, near
        (range(8), range(32, 64), ()),  # and elsewhere, which doctor tells
        (range(24, 40), range(32, 64), ()),  # and across
        (range(64), range(64), ()),  # one node
        (range(64), range(0), ()),  # NVML does not know
        (range(64), None, ()),  # no GPU
    ],
)
def test_cores_near_the_gpu(cpus: range, near: range | None, moved: range | tuple[()]) -> None:
    assert cores_near_gpu(survey(cpus, near)) == tuple(moved)


def test_a_rank_moves_before_its_communicators_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: moved.append(cpus))
    monkeypatch.setattr(
        "meshrun.runner.world.preflight.inspection.survey", lambda *_, **__: survey(range(8), range(4, 8))
    )
    monkeypatch.setattr("meshrun.runner.world.preflight.checks.check_surveys", lambda *_, **__: [])

    def body(control: ThreadComm) -> None:
        backend = CpuBackend()
        ranks = [Rank(i, "n1", "n1/1", i, 4711 + i, backend.device) for i in range(2)]
        assert preflight(BY_HAND)(control, ranks, backend) == []

    run_ranks(2, body)
    assert moved == [(4, 5, 6, 7)] * 2


def test_another_device_than_there_are_is_no_cpu() -> None:
    with pytest.raises(UserError, match="no such device: got 'gpu', expected auto, cpu, cuda"):
        open_world("gpu")  # type: ignore[arg-type]
