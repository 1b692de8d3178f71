"""The comparison with peers: what it counts and finds, without starting a peer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from scripts import load

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture
def peers() -> Any:
    return load(FOLDER / "run.py")


def test_the_page_has_the_lines_of_each_program(peers: Any) -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    every = (*peers.CPUS, *peers.GPUS)
    counted = {peer.name: peers.lines_of(peers.HERE / peer.program) for peer in every}
    assert {name: int(lines) for name, lines in rows} == counted
    assert {path.name for path in peers.HERE.glob("*.py")} == {peer.program for peer in every}
    assert len({peers.folder_of(peer) for peer in every}) == len(every)


def test_a_corner_does_not_depend_on_cells_beyond_it(peers: Any) -> None:
    plate = np.random.default_rng(4).random((40, 40), np.float32)
    whole = peers.reference(plate, 9)[:12, :12]
    np.testing.assert_array_equal(peers.reference(plate[:21, :21], 9)[:12, :12], whole)


def test_lines_are_counted_without_comments_and_docstrings(tmp_path: Path, peers: Any) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        '"""Text\nof two lines."""\n\n# a remark\nimport os\n\n\ndef f():\n    """Text."""\n    return 1\n'
    )
    assert peers.lines_of(path) == 3


def test_the_reference_is_the_heat_equation(peers: Any) -> None:
    plate = np.random.default_rng(3).random((9, 7), np.float32)
    expected = plate.astype(float)
    for _ in range(3):
        sides = ndimage.correlate(expected, [[0, 1, 0], [1, -4, 1], [0, 1, 0]], mode="nearest")
        expected = expected + 0.2 * sides
    np.testing.assert_allclose(peers.reference(plate, 3), expected, rtol=1e-12)


def test_a_process_is_found_with_all_that_descend_from_it(peers: Any) -> None:
    """A shell, its child and a grandchild, which ends with the pipe."""
    words = ["sh", "-c", "sh -c 'cat; :'; :"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as shell:
        for _ in range(1000):
            found = peers.tree(shell.pid)
            if len(found) == 3:
                break
        assert len(found) == 3
        assert found[0] == shell.pid
        assert os.getpid() not in found
        assert all(peers.memory(one) > 0 for one in found)
    assert peers.memory(shell.pid) == 0
