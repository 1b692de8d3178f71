"""Halos that a run exchanges once go through host memory: no communicator of devices opens for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HostPeers, HostTables, compiled
from PIL import Image
from queued_device import QueuedBackend
from step_runs import padded, plain_loop

import meshrun
from meshrun.runner.arrays.halo import exchange as exchange_module
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.job.discover import find
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps import halo_path
from meshrun.runner.world.world import open_world


class Unopened:
    """The communicator of devices, which opens at the first messages."""

    label, capturable = "NCCL 0.0", False

    def __init__(self, control: Control) -> None:
        self._control = control
        self.is_open = False

    def exchange(self, sends: Any, receives: Any) -> Any:
        self.is_open = True
        return self._control.exchange(sends, receives)

    def close(self) -> None:
        pass


def opened_by(job: Any, inputs: Any, outputs: Any, ranks: int = 2, **options: Any) -> bool:
    """Run a job on devices that are queues; return whether a communicator of devices was opened."""

    def rank(control: ThreadComm) -> bool:
        world = open_world("cpu", control=control)
        world.backend, world.arrays = QueuedBackend(), Unopened(world.control)
        run(job, inputs, outputs, {}, Options(device="cpu", **options), world=world)
        return world.arrays.is_open

    found = run_ranks(ranks, rank, timeout=60)
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_photograph_opens_none(tmp_path: Path, overlap: bool) -> None:
    photo = np.random.default_rng(1).integers(0, 256, (40, 31, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / "a.png")
    job = find("laplacian")
    for ranks in (1, 3):
        opened = opened_by(job, tmp_path / "a.png", tmp_path / f"{ranks}.png", ranks, overlap=overlap)
        assert opened is False
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "3.png").read_bytes()


def test_large_halos_open_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field = np.random.default_rng(1).random((40, 32), np.float32)
    np.save(tmp_path / "a.npy", field)
    smooth = meshrun.map_blocks(halo=1, boundary="reflect")(lambda a: a[:-2, 1:-1] + a[2:, 2:])
    monkeypatch.setattr(exchange_module, "STAGED_BYTES", 2 * 32 * 4 + 20 * 2 * 4 + 16)
    assert not opened_by(smooth, tmp_path / "a.npy", tmp_path / "b.npy", overlap=False)
    monkeypatch.setattr(exchange_module, "STAGED_BYTES", 2 * 32 * 4 + 20 * 2 * 4 + 15)
    assert opened_by(smooth, tmp_path / "a.npy", tmp_path / "c.npy", overlap=False)
    around = padded(field, ((1, 1), (1, 1)), "reflect", 0)
    for name in ("b.npy", "c.npy"):
        np.testing.assert_array_equal(np.load(tmp_path / name), around[:-2, 1:-1] + around[2:, 2:])


def drift(now: Any, speed: Any) -> Any:
    return now[:-2, 1:-1] + speed[2:, 1:-1] * now[1:-1, 2:]


@pytest.mark.parametrize(("halo", "opens"), [("direct", False), ("nccl", True)])
def test_steps_open_one_for_messages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halo: Any, opens: bool
) -> None:
    """The halos before the first step, also of an input that stays, are exchanged once."""
    library = compiled(tmp_path)
    monkeypatch.setattr(halo_path, "find_tables", lambda world, ndim: HostTables(library))
    monkeypatch.setattr(
        halo_path,
        "find_peers",
        lambda world, choice, ndim: "--halo nccl" if choice == "nccl" else HostPeers(world.control),
    )
    job = meshrun.map_blocks(halo=1, boundary="wrap", feeds="now")(drift)
    arrays = [np.random.default_rng(n).integers(0, 2**32, (12, 9), np.uint32) for n in range(2)]
    inputs = [tmp_path / "now.npy", tmp_path / "speed.npy"]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    steps = StepOptions(4, halo=halo)
    assert opened_by(job, inputs, tmp_path / "out.npy", steps=steps) is opens
    (expected,) = plain_loop(drift, arrays, 4, ((1, 1), (1, 1)), "wrap", [0])
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
