import math

import pytest

from meshrun.jobs.validate.probe import sampling


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure each operation once per sample, and subtract no stolen time."""
    monkeypatch.setattr(sampling, "CPU_SECONDS", 0.0)
    monkeypatch.setattr(sampling, "TOO_SHORT", math.inf)
