"""The summary of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshrun.jobs.filters.statistics import statistics
from meshrun.runner.report.summary import render


@pytest.mark.parametrize(
    ("shape", "name"), [((), "a single float32"), ((1,), "1 float32"), ((3, 2), "3x2 float32")]
)
def test_a_headline_names_the_array(tmp_path: Path, shape: tuple[int, ...], name: str) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.float32))
    record = statistics.run(tmp_path / "a.npy", device="cpu")
    assert render(record).startswith(f"statistics on {name}: 1 rank on 1 host (CPU), ")
