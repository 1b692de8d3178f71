"""The table of observations: what rounds of different sizes become."""

from __future__ import annotations

import numpy as np
import pytest

from meshrun.jobs.validate.localize.observations import Observations, Siblings, tabulate
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.topology import Ints


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


def test_slow_samples_of_an_earlier_table_are_kept_unless_all_were_slow() -> None:
    def table(flows: list[tuple[int, int]], slow: list[int]) -> Observations:
        fast = np.ones((len(flows), 10))
        for row, count in zip(fast, slow, strict=True):
            row[:count] = 3.0
        alike = Siblings(np.zeros(len(flows), np.int64), None, 0.0)
        return tabulate([np.array(flows)], [fast], lambda a, b: alike, Plan())

    others = [(number, number + 1) for number in range(10, 30)]
    earlier = table([(0, 1), (1, 2), (2, 3), *others], [4, 10, 0, *[0] * 20])
    later = table([(2, 3), (0, 1), (1, 2), (7, 8)], [1, 1, 0, 0]).with_slow_samples(earlier)
    assert later.slow.tolist() == [1, 5, 0, 0]
    assert later.count.tolist() == [20, 20, 10, 10]


def test_what_slows_most_rows_that_are_measured_together_makes_no_sample_slow() -> None:
    """Host 0 is loaded for six of ten moments; one of its rows is slow in all of them, for another reason."""
    flows = np.array([(number, 10 + number) for number in range(20)])
    hosts = np.stack([np.arange(20) // 8, 5 + np.arange(20)], axis=1)  # 8, 8 and 4 rows
    seconds = np.ones((20, 10))
    seconds[:8, :6] = 1.3
    seconds[7] = 1.9
    seconds[16:, :6] = 1.3
    alone = tabulate([flows], [seconds], one_class, Plan())
    table = tabulate([flows], [seconds], one_class, Plan(), together=hosts)
    assert alone.slow.tolist() == [6] * 7 + [10] + [0] * 8 + [6] * 4
    assert table.slow.tolist() == [0] * 7 + [10] + [0] * 8 + [6] * 4  # four rows are too few to tell
    np.testing.assert_array_equal(table.level, alone.level)
