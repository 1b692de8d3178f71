"""Boundaries that differ by input, axis and side: how they are written, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.options.boundary import spelled
from meshrun.runner.plan.beyond import Side
from meshrun.runner.plan.task import Task, plan_task


@meshrun.map_blocks(halo=1)
def job(p: Any, q: Any, *, inflow: float = 2.5, table: meshrun.Series, name: str = "", flag: bool = False):
    return p[1:-1, 1:-1]


def planned(boundary: Any, dtype: str = "f8", table: Any = (0.0, 1, 2, 3), **options: Any) -> Task:
    parameters = job.complete({"table": table})
    types = [((6, 7), np.dtype(dtype))] * 2
    return plan_task(job, parameters, types, 1, boundary=spelled(boundary), **options)


@pytest.mark.parametrize(
    ("boundary", "text"),
    [
        ("wrap", "wrap"),
        (0.5, "0.5"),
        (("wrap",), "wrap,"),
        (("wrap", (0.0, "nearest")), "wrap,0.0:nearest"),
        ([("inflow", np.float64(0.1)), np.int64(3)], "inflow:0.1,3"),
        ({"p": "wrap", "q": (("mirror", float("-inf")), "table")}, "p=wrap;q=mirror:-inf,table"),
    ],
)
def test_a_boundary_as_a_text_is_the_same(boundary: Any, text: str) -> None:
    assert spelled(boundary) == text
    assert spelled(text) == text


def test_each_side_has_its_rule() -> None:
    task = planned({"p": ("wrap", (-2, "nearest")), "q": (("inflow", "table"), "constant")}, cval=4.0)
    p, q = task.fields
    assert p.rules == ((Side("wrap"), Side("wrap")), (Side("constant", -2), Side("nearest")))
    sides = (Side("constant", 2.5), Side("constant", "table")), (Side("constant", 4.0), Side("constant", 4.0))
    assert q.rules == sides
    assert (task.boundary, task.boundary_read) == ("wrap", "wrap")
    assert task.beyond(1, 3)[1] == ((2.5, 3.0), (4.0, 4.0))


def test_inputs_that_are_not_named_reflect() -> None:
    task = planned({"p": "nearest"})
    assert {side.mode for axis in task.fields[1].rules for side in axis} == {"reflect"}


@pytest.mark.parametrize("boundary", ["p=nearest;q=nearest", ("nearest", ("nearest", "nearest"))])
def test_one_rule_for_all_is_no_boundary_by_side(boundary: Any) -> None:
    task = planned(boundary)
    assert (task.boundary, task.declared_boundary, task.by_side) == ("nearest", "", False)
    assert planned(("inflow", 2.5)).cval == 2.5


@pytest.mark.parametrize(
    ("boundary", "what", "hint"),
    [
        ("neerest", "unknown boundary", "nearest"),
        ("p=wrap,inflo", "unknown boundary", "inflow"),
        ("name,wrap", "the parameter name is no number", None),
        ("flag,wrap", "the parameter flag is no number", None),
        ("r=wrap", "names an input that job job does not have", None),
        ("wrap:nearest,wrap", "wrap joins both ends of an axis", "wrap, without another rule for this axis"),
        ("wrap,", "names 1 axis of the input p", "a pair in the place of its entry"),
        ("wrap,wrap,wrap", "names 3 axes of the input p", "a pair in the place of its entry"),
        ("p=1.5.2", "is not readable", "p=wrap,0.0:nearest"),
        ("p=wrap;wrap", "is not readable", "p=wrap,0.0:nearest"),
        ("p=wrap;p=wrap", "is not readable", "p=wrap,0.0:nearest"),
        ("p=1:2:3", "is not readable", "p=wrap,0.0:nearest"),
        ("", "is not readable", "p=wrap,0.0:nearest"),
        ((("wrap", "wrap", "wrap"),), "is not readable", '"p": ("wrap", (0.0, "nearest"))'),
        ({"p": None}, "is not readable", '"p": ("wrap", (0.0, "nearest"))'),
        ({}, "is not readable", None),
        (True, "is not readable", None),
        ((), "is not readable", None),
        (("wrap", 1j), "is not readable", None),
    ],
)
def test_what_is_no_boundary_is_refused_with_what_is_one(boundary: Any, what: str, hint: str | None) -> None:
    with pytest.raises(UserError) as refused:
        planned(boundary)
    assert what in str(refused.value)
    assert hint is None or hint in str(refused.value)


def test_a_decorator_is_checked_where_it_is() -> None:
    for boundary, what in (({"v": "wrap"}, "names an input"), (("infow", "wrap"), "unknown boundary")):
        with pytest.raises(UserError, match=what):

            @meshrun.map_blocks(halo=1, boundary=boundary)
            def refused(u, *, inflow: float = 1.0):
                return u[1:-1, 1:-1]


@pytest.mark.parametrize("boundary", [(("nearest", 0.5), "wrap"), (("nearest", "table"), "wrap")])
def test_a_constant_that_the_dtype_cannot_hold_is_refused(boundary: Any) -> None:
    with pytest.raises(UserError, match="does not fit"):
        planned(boundary, "i1", table=np.array([1.0, 999]))


def test_a_table_of_several_columns_is_no_constant() -> None:
    with pytest.raises(UserError, match="each row of the table table must be one number"):
        planned((("table", "nearest"), "wrap"), table=np.ones((4, 2)))
    with pytest.raises(UserError, match="a row for each step"):
        planned((("table", "nearest"), "wrap"), table=np.ones(0))
