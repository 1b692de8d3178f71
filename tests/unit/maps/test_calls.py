"""How often a job's function is called on each row: once, besides trials on other cells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queued_device import QueuedBackend
from stream_cases import run_on

import meshrun

ROWS = 30


class Counted:
    """Rows that a function was called on, halo left out. The cells of row n hold n + 1; zeros are a trial."""

    def __init__(self, halo: int, *, refuses_zeros: bool = False) -> None:
        self.calls: Counter[int] = Counter()
        self.trials = 0
        self.halo, self.refuses_zeros = halo, refuses_zeros

    def __call__(self, block: Any) -> Any:
        own = block[self.halo : len(block) - self.halo]
        if not own.any():
            self.trials += 1
            if self.refuses_zeros:
                raise ValueError("zeros")
        else:
            if self.refuses_zeros and (own != own[:, :1]).any():  # cells of a trial
                raise ValueError("no rows")
            self.calls.update(int(n) - 1 for n in own.reshape(len(own), -1)[:, 0])
        print("called")
        return own.astype(np.float64)

    def job(self) -> Any:
        def counted(block: Any) -> Any:
            return self(block)

        return meshrun.map_blocks(
            halo=((self.halo, self.halo), (0, 0)), boundary="nearest", split_dependent=True
        )(counted)


def numbered(first: int = 0, rows: int = ROWS) -> Any:
    return np.repeat(np.arange(first + 1, first + rows + 1, dtype=np.uint8)[:, np.newaxis], 4, axis=1)


ONCE = dict.fromkeys(range(ROWS), 1)
WAYS: list[Any] = [
    pytest.param({}, 0, id="in memory"),
    pytest.param({"overlap": True}, 0, id="overlapped"),
    pytest.param({"chunk_bytes": 24}, 1, id="streamed"),
    pytest.param({"chunk_bytes": 24, "grid": "2"}, 1, id="streamed, a grid of its own"),
]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize(("options", "trials"), WAYS)
def test_every_row_is_computed_once(
    tmp_path: Path,
    options: dict[str, Any],
    trials: int,
    halo: int,
    ranks: int,
) -> None:
    np.save(tmp_path / "in.npy", numbered())
    counted = Counted(halo)
    run_on(ranks, counted.job(), tmp_path / "in.npy", tmp_path / "out.npy", **options)
    assert counted.calls == ONCE
    assert counted.trials == trials
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), numbered())


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("stream", [{}, {"chunk_bytes": 24}])
def test_on_devices_zeros_compile_the_kernels(tmp_path: Path, stream: dict[str, Any], ranks: int) -> None:
    np.save(tmp_path / "in.npy", numbered())
    counted, devices = Counted(0), [QueuedBackend() for _ in range(ranks)]
    run_on(ranks, counted.job(), tmp_path / "in.npy", tmp_path / "out.npy", devices=devices, **stream)
    assert counted.calls == ONCE
    assert counted.trials == (1 + ranks if stream else 0)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_function_that_raises_on_zeros_is_tried_on_the_first_row(tmp_path: Path, on_device: bool) -> None:
    np.save(tmp_path / "in.npy", numbered())
    counted = Counted(0, refuses_zeros=True)
    devices = [QueuedBackend()] if on_device else None
    run_on(1, counted.job(), tmp_path / "in.npy", tmp_path / "out.npy", devices=devices, chunk_bytes=24)
    assert counted.calls == {**ONCE, 0: 2}
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), numbered())


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_row_of_a_folder_of_images_is_computed_once(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "in").mkdir()
    for number in range(5):
        np.save(tmp_path / "in" / f"{number}.npy", numbered(6 * number, 6))
    counted = Counted(0)
    run_on(ranks, counted.job(), tmp_path / "in", tmp_path / "out")
    assert counted.calls == ONCE
    assert counted.trials == 1
