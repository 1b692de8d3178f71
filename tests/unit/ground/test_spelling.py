"""Options are written as their caller writes them."""

from __future__ import annotations

import doctest

import pytest

from meshrun.runner import spelling
from meshrun.runner.spelling import command_option, option, python_caller, renamed, run_command


def test_the_examples() -> None:
    assert doctest.testmod(spelling).failed == 0


def test_options_of_a_job_with_parameters_of_their_names() -> None:
    with renamed({"depth": "run_depth"}):
        assert option("depth", 2) == "--run-depth 2"
        with python_caller({"depth": "run_depth"}):
            assert option("depth", 2) == "run_depth=2"
        assert option("depth") == "--run-depth"
    assert option("depth") == "--depth"


def test_a_function_for_programs_keeps_the_names() -> None:
    @python_caller()
    def spelled() -> str:
        return option("depth", 2)

    assert spelled() == "depth=2"
    with python_caller({"depth": "run_depth"}):
        assert spelled() == "run_depth=2"


def test_a_command_is_a_hint_for_those_who_type_commands() -> None:
    assert run_command("airflow sphere") == "meshrun run airflow sphere"
    with python_caller():
        assert run_command("airflow sphere") is None
        assert command_option("stall_timeout", metavar="SECONDS") == "--stall-timeout SECONDS"


def test_the_number_of_ranks_is_an_option_of_meshrun_itself() -> None:
    with renamed({"ranks": "run_ranks"}):
        assert (option("ranks"), option("ranks", 4)) == ("--run-ranks", "-n 4")
        with python_caller():
            assert option("ranks", 4) == "run_ranks=4"


def test_numbers_are_written_as_people_write_them() -> None:
    assert (option("cval", 1.0), option("dt", 0.25), option("size", 2**40)) == (
        "--cval 1",
        "--dt 0.25",
        "--size 1099511627776",
    )
    with python_caller():
        assert (option("cval", 1.0), option("kernel", "1 2")) == ("cval=1", "kernel='1 2'")


def test_an_error_gives_the_caller_back() -> None:
    with pytest.raises(ValueError, match="x"), python_caller():
        raise ValueError("x")
    assert option("frames") == "--frames"
