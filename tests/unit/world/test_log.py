"""Warnings of a run: logged in a program, printed by a command."""

from __future__ import annotations

import logging

import pytest

from meshrun.runner.world.log import warnings_told
from meshrun.runner.world.world import open_world


def test_a_program_gets_a_warning_by_its_logger(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    world = open_world("cpu")
    world.warn("100 % of it")
    assert caplog.record_tuples == [("meshrun", logging.WARNING, "100 % of it")]
    assert world.warnings == ["100 % of it"]
    assert capsys.readouterr() == ("", "")


def test_a_command_prints_it_and_leaves_the_programs_logger_as_it_was(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("meshrun")
    before = logger.handlers.copy(), logger.propagate
    with warnings_told():
        open_world("cpu").warn("100 % of it")
    assert capsys.readouterr().err == "meshrun: warning: 100 % of it\n"
    assert not caplog.records
    assert (logger.handlers, logger.propagate) == before
