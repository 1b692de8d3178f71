"""Products of parameters of which each pair of values is tried by day, and every combination at night."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def pairs_by_day(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with all combinations; those that no pair of values needs are marked `nightly`.

    values: of each parameter; "a__b" are two parameters that go together, and its values are tuples.
    """
    every = list(itertools.product(*(range(len(one)) for one in values.values())))
    chosen = set(cover(every))
    names = ",".join(values).replace("__", ",")
    cases = []
    for places in every:
        case: list[Any] = []
        for name, options, place in zip(values, values.values(), places, strict=True):
            case += options[place] if "__" in name else [options[place]]
        cases.append(pytest.param(*case, marks=[] if places in chosen else [pytest.mark.nightly]))
    return pytest.mark.parametrize(names, cases)


def cover(every: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return few of some combinations: each pair of values of two parameters is in one of them."""
    wanted = set().union(*map(pairs, every))
    chosen = []
    while wanted:
        chosen.append(max(every, key=lambda one: len(pairs(one) & wanted)))
        wanted -= pairs(chosen[-1])
    return chosen


def pairs(places: tuple[int, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(places), 2))
