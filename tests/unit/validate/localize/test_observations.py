"""The table of observations: what rounds of different sizes become."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.validate.localize.observations import Siblings, tabulate
from jobs.validate.plan import Plan
from jobs.validate.topology import Ints


def one_class(a: Ints, b: Ints) -> Siblings:
    return Siblings(np.zeros(len(a), np.int64), None, 0.5)


def test_rounds_with_different_numbers_of_samples_are_one_table() -> None:
    """A retest takes more samples than the one before if measurements have become noisier."""
    flows = [np.array([[0, 1], [2, 3]]), np.array([[4, 5], [6, 7]])]
    seconds = [np.full((2, 4), 1.0), np.full((2, 6), 1.0)]
    seconds[0][1] = 2.0
    seconds[1][1, 5] = np.nan
    table = tabulate(flows, seconds, one_class, Plan())
    assert table.count.tolist() == [4, 4, 6, 5]
    assert table.level.tolist() == pytest.approx([0, np.log(2), 0, 0])
    assert table.failed == {6, 7}
