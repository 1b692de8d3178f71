"""What one rank reads for all, written where only whole chunks can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import meshrun
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.run.execute import run
from meshrun.runner.storage.formats.flat import FlatSink
from meshrun.runner.world.world import World, open_world


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_picture_goes_into_a_store_of_several_chunks(tmp_path: Path, ranks: int) -> None:
    zarr = pytest.importorskip("zarr")
    picture = np.random.default_rng(8).integers(0, 255, (3000, 2500, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "in.png", compress_level=0)
    job = meshrun.map_blocks(lambda block: block)

    def same(comm: ThreadComm) -> None:
        world = open_world("cpu", control=comm)
        run(job, tmp_path / "in.png", tmp_path / "out.zarr", world=world)

    run_ranks(ranks, same)
    stored = zarr.open_array(tmp_path / "out.zarr")
    assert stored.chunks != picture.shape
    np.testing.assert_array_equal(stored[...], picture)


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_file_of_several_hosts_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(World, "hosts", property(lambda _: [f"n{number}" for number in range(hosts)]))
    monkeypatch.setattr(FlatSink, "sync", lambda sink: synced.append(sink.path.exists()))
    np.save(tmp_path / "in.npy", np.arange(24.0).reshape(4, 6))
    job = meshrun.map_blocks(lambda block: 2 * block)

    def twice(comm: ThreadComm) -> None:
        run(job, tmp_path / "in.npy", tmp_path / "out.npy", world=open_world("cpu", control=comm))

    run_ranks(2, twice)
    assert synced == ([False, False] if hosts > 1 else [])
