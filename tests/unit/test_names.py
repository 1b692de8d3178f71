"""Names from outside: control characters are shown escaped, loops and wrong kinds of files are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshrun.jobs.filters.weights import read
from meshrun.runner.errors import UserError, printable, tell
from meshrun.runner.files import keep_mode
from meshrun.runner.region import Region
from meshrun.runner.storage.formats.image_folder import open_folder
from meshrun.runner.storage.formats.registry import commit, open_sink


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb\rc", "a\\x1b[2Jb\\x0dc"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        (
            "two\nlines\tand \xe9",
            "two\nlines\tand \xe9",
        ),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(text) == shown
    tell(text)
    assert capsys.readouterr().err == f"meshrun: {shown}\n"


def test_a_loop_of_links_in_a_folder_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", np.zeros(3))
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    with pytest.raises(UserError, match=r"cannot read .*/loop\.npy: Too many levels of symbolic links"):
        open_folder(tmp_path)


def test_several_arrays_are_no_kernel(tmp_path: Path) -> None:
    np.savez(tmp_path / "kernel.npz", np.zeros(3))
    path = (tmp_path / "kernel.npz").rename(tmp_path / "kernel.npy")
    with pytest.raises(UserError, match=r"the kernel '.*kernel\.npy' cannot be used: several arrays"):
        read(str(path), False)


@pytest.mark.parametrize("name", ["out.npy", "out.raw", "out.png"])
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_an_output_that_is_replaced_keeps_its_permissions(tmp_path: Path, name: str, mode: int) -> None:
    path = tmp_path / name
    path.touch()
    path.chmod(mode)
    sink = open_sink(path, (4, 5), np.dtype(np.uint8), "nonce")
    sink.create()
    sink.write(_whole(), np.zeros((4, 5), np.uint8))
    sink.sync()
    commit(sink)
    assert path.stat().st_mode & 0o777 == mode


def test_a_new_output_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    before = (tmp_path / "new").stat().st_mode
    keep_mode(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == before


def _whole() -> Region:
    return Region((0, 0), (4, 5))
