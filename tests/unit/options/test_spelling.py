"""Options are written as their caller writes them."""

from __future__ import annotations

import doctest

import pytest

from meshrun.runner.options import spelling
from meshrun.runner.options.spelling import option, python_caller, renamed


def test_the_examples() -> None:
    assert doctest.testmod(spelling).failed == 0


def test_options_of_a_job_with_parameters_of_their_names() -> None:
    with renamed({"depth": "run_depth"}):
        assert option("depth", 2) == "--run-depth 2"
        with python_caller({"depth": "run_depth"}):
            assert option("depth", 2) == "run_depth=2"
        assert option("depth") == "--run-depth"
    assert option("depth") == "--depth"


def test_an_error_gives_the_caller_back() -> None:
    with pytest.raises(ValueError, match="x"), python_caller():
        raise ValueError("x")
    assert option("frames") == "--frames"
