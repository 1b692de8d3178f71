"""Pictures that one rank decodes as a whole are compared with the memory, before they are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import meshrun
from runner.errors import UserError
from runner.pipeline import decoded_inputs
from runner.pipeline.decoded_inputs import check_decoded
from runner.pipeline.reduce import Tiles
from runner.storage.formats import image
from runner.world.world import open_world


@meshrun.map_blocks
def same(block: Any) -> Any:
    return block


@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def total(block: Any) -> Any:
    return float(block.sum())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64)).save("a.jpg")
    Image.new("L", (64, 64)).save("b.png")


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with less memory than the picture needs, on a host that has enough."""

    def decode(path: Path) -> Any:
        raise AssertionError(f"{path} was decoded")

    monkeypatch.setattr(decoded_inputs, "host_memory", lambda: 10_000)
    monkeypatch.setattr(image, "_decode", decode)


@pytest.mark.usefixtures("container")
def test_a_picture_larger_than_the_containers_memory_is_refused() -> None:
    sentence = r"a\.jpg does not fit the host's memory: got 12,288 bytes decoded, expected at most 10,000"
    for job, outputs in ((same, "out.png"), (total, ())):
        with pytest.raises(UserError, match=sentence):
            job.run("a.jpg", outputs, device="cpu")
    with pytest.raises(UserError, match=sentence):
        Tiles(open_world("cpu"), "a.jpg")


@pytest.mark.usefixtures("container")
def test_a_folders_picture_larger_than_the_containers_memory_is_refused() -> None:
    Path("in").mkdir()
    Path("a.jpg").rename("in/a.jpg")
    with pytest.raises(UserError, match=r"a\.jpg does not fit the host's memory"):
        same.run("in", "out", device="cpu")


def test_pictures_are_added_up() -> None:
    paths = [Path("a.jpg"), Path("b.png"), Path("none.png")]
    check_decoded(paths, 16_384)
    check_decoded(paths, None, 16_384)
    check_decoded(paths, None, 0)
    with pytest.raises(
        UserError,
        match=r"less than a\.jpg and b\.png need, which are decoded as a whole.*expected at least 16,384",
    ):
        check_decoded(paths, 16_383)
    with pytest.raises(UserError, match=r"a\.jpg and b\.png do not fit the host's memory"):
        check_decoded(paths, None, 16_383)


def test_arrays_that_are_read_in_parts_are_not_decoded() -> None:
    np.save("in.npy", np.zeros(1000))
    check_decoded([Path("in.npy")], 1)
