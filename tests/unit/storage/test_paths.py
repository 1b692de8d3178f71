"""Names of files, and of arrays in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.runner.errors import UserError
from meshrun.runner.storage.paths import named


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Zarr store of either version, an HDF5 file, and a folder that is only called like a store."""
    for store, node in (("two.zarr", ".zgroup"), ("three.zarr", "zarr.json")):
        (tmp_path / store / "sub" / "field").mkdir(parents=True)
        (tmp_path / store / node).write_text("{}")
    (tmp_path / "a.h5").touch()
    (tmp_path / "plain.zarr" / "photos").mkdir(parents=True)
    (tmp_path / "three.zarr" / "photo.png").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("three.zarr/sub/field", "three.zarr:sub/field"),
        ("two.zarr/sub", "two.zarr:sub"),
        ("two.zarr/not/there", "two.zarr:not/there"),
        ("a.h5/group/x", "a.h5:group/x"),
    ],
)
def test_a_path_into_a_container_is_refused_with_the_arrays_name(folder: Path, name: str, hint: str) -> None:
    """It "holds no image"."""
    with pytest.raises(UserError) as caught:
        named("INPUT", folder / name)
    assert caught.value.hint == str(folder / hint)
    assert "named with a colon" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "three.zarr",
        "three.zarr:sub/field",
        "three.zarr/sub/inner.zarr",
        "three.zarr/photo.png",
        "plain.zarr/photos",
        "a.h5:/x/y",
        "gone.zarr/x",
    ],
)
def test_other_paths_are_kept(folder: Path, name: str) -> None:
    assert named("INPUT", folder / name) == folder / name
