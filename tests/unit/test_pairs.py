"""Which combinations of parameters are tried by day."""

from __future__ import annotations

import itertools

import pytest
from pairs import cover, pairs, pairs_by_day


@pytest.mark.parametrize("sizes", [(5,), (3, 4), (5, 2, 2, 5), (3, 3, 5), (2, 2, 2, 2, 2)])
def test_each_pair_of_values_is_in_one_of_few(sizes: tuple[int, ...]) -> None:
    every = list(itertools.product(*map(range, sizes)))
    chosen = cover(every)
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, every))
    assert len(chosen) == len(set(chosen)) <= len(every)
    if len(sizes) > 2:
        assert len(chosen) <= len(every) / 2


def test_at_night_there_is_every_combination() -> None:
    mark = pairs_by_day(a=[1, 2], b__c=[(3, 4), (5, 6)], d="xyz").mark
    names, cases = mark.args
    assert names == "a,b,c,d"
    assert {case.values for case in cases} == {
        (a, b, c, d) for a in (1, 2) for b, c in ((3, 4), (5, 6)) for d in "xyz"
    }
    assert sum(not case.marks for case in cases) == 6
