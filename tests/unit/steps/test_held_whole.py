"""Arrays from outside of a function: those that every rank holds whole are reported, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_runs import stepped

import meshrun
from meshrun.runner.compiler import function_key
from meshrun.runner.compiler.whole.functions import outside
from meshrun.runner.errors import UserError
from meshrun.runner.report.summary import render

COEFFICIENTS = np.arange(13.0)
OF_FIELDS = np.arange(12.0 * 13).reshape(12, 13)


def whole(u: Any) -> Any:
    return u * COEFFICIENTS + OF_FIELDS


def blocks(u: Any, *, here: meshrun.BlockContext) -> Any:
    columns = slice(here.offset[1], here.offset[1] + here.block[1])
    return u * COEFFICIENTS[columns]


@pytest.mark.parametrize(("declare", "function"), [(meshrun.distribute, whole), (meshrun.map_blocks, blocks)])
def test_the_summary_says_what_every_rank_holds_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declare: Any, function: Any
) -> None:
    """An array of the fields' shape is cut."""
    monkeypatch.setattr(function_key, "REPORTED", 100)
    (found,), record = stepped(tmp_path, declare(function), [np.ones((12, 13))], 1, ranks=2)
    expected = whole(np.ones((12, 13))) if function is whole else np.ones((12, 13)) * COEFFICIENTS
    np.testing.assert_array_equal(found, expected)
    assert record["held_whole"] == {"COEFFICIENTS": 104}
    assert "COEFFICIENTS: 104 bytes on every rank" in render(record).replace("104 B", "104 bytes")


def test_a_large_array_that_cannot_be_cut_is_refused_with_its_line_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "LARGEST_WHOLE", 100)
    u = np.ones((12, 13))
    with pytest.raises(UserError) as refused:
        stepped(tmp_path, meshrun.distribute(whole), [u], 1)
    text = str(refused.value)
    assert "COEFFICIENTS of shape 13" in text
    assert "104" in text
    assert f"line {whole.__code__.co_firstlineno + 1}" in text
    assert "an input of the function instead" in text
    monkeypatch.setattr(outside, "LARGEST_WHOLE", 104)  # that of the fields' shape is larger, and cut
    (found,), _ = stepped(tmp_path, meshrun.distribute(whole), [u], 1)
    np.testing.assert_array_equal(found, whole(u))
