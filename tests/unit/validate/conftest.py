import math

import pytest

from jobs.validate.probe import sampling


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks measure each thing once a sample, as tests that look at times ask for themselves.

    Nothing is taken off for stolen processors: ranks that sleep do not mind.
    """
    monkeypatch.setattr(sampling, "CPU_SECONDS", 0.0)
    monkeypatch.setattr(sampling, "TOO_SHORT", math.inf)
