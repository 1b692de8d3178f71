"""Pictures that one rank decodes as a whole are compared with the memory, before they are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import meshrun
from meshrun.runner.arrays import load
from meshrun.runner.arrays.load import check_decoded, open_decoded
from meshrun.runner.errors import UserError
from meshrun.runner.maps.reduce import Tiles
from meshrun.runner.region import Region
from meshrun.runner.storage.formats import image
from meshrun.runner.storage.formats.registry import open_source
from meshrun.runner.world.world import open_world


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

    monkeypatch.setattr(load, "host_memory", lambda: 10_000)
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
    sources = [open_source(Path("a.jpg")), open_source(Path("b.png"))]
    check_decoded(sources, 16_384)
    check_decoded(sources, None, 16_384)
    check_decoded(sources, None, 0)
    with pytest.raises(
        UserError,
        match=r"less than a\.jpg and b\.png need, which are decoded as a whole.*expected at least 16,384",
    ):
        check_decoded(sources, 16_383)
    with pytest.raises(UserError, match=r"a\.jpg and b\.png do not fit the host's memory"):
        check_decoded(sources, None, 16_383)


def test_arrays_that_are_read_in_parts_are_not_decoded() -> None:
    np.save("in.npy", np.zeros(1000))
    check_decoded([open_source(Path("in.npy"))], 1)


@pytest.fixture
def cut_off() -> Path:
    """A picture whose pixels are broken, and whose header is not."""
    noise = np.random.default_rng(0).integers(0, 255, (300, 200, 3), np.uint8)
    Image.fromarray(noise).save("cut.jpg")
    path = Path("cut.jpg")
    path.write_bytes(path.read_bytes()[:2000])
    return path


def test_a_picture_is_decoded_by_a_run_and_not_by_its_plan(cut_off: Path) -> None:
    assert same.plan(cut_off, ranks=1, gpu="cpu")["shape"] == [300, 200, 3]
    with pytest.raises(UserError, match=r"cut\.jpg is broken or truncated"):
        same.run(cut_off, "out.png", device="cpu")
    assert not Path("out.png").exists()


def test_a_header_is_read_once_before_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    opened, decode = image._opened, image._decode
    monkeypatch.setattr(image, "_opened", lambda path: done.append("open") or opened(path))
    monkeypatch.setattr(image, "_decode", lambda path: done.append("decode") or decode(path))
    source = open_source(Path("a.jpg"))
    assert (source.shape, source.decoded_bytes, done) == ((64, 64, 3), 12_288, ["open"])
    done.clear()
    (source,) = open_decoded([Path("a.jpg")])
    assert done == ["open", "decode", "open"]
    source.read(Region((0, 0, 0), (64, 64, 3)), np.empty((64, 64, 3), np.uint8))
    assert done == ["open", "decode", "open"]
    done.clear()
    same.plan("a.jpg", ranks=1, gpu="cpu")
    assert done == ["open"]
