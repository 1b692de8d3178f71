import math

import pytest

from jobs.validate.ranks import part


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks measure each thing once a sample, as tests that look at times ask for themselves.

    Nothing is taken off for stolen processors: ranks that sleep do not mind.
    """
    monkeypatch.setattr(part, "LONG", 0.0)
    monkeypatch.setattr(part, "TOO_SHORT", math.inf)
