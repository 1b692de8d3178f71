"""Lines for the process that started the ranks, among what they print for people."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.launch.supervise.status_lines import StatusLines
from meshrun.runner.world.run_status import LINE, RunDirectory

OURS = f'{LINE} tok record {{"complete": true}}\n'
OTHERS = f'{LINE} kot record {{"complete": true}}\n'


@given(
    st.lists(st.sampled_from(["a row\n", "45 %\r", OURS, OTHERS, "\x1e", "\x1emesh", "\n"]), max_size=8),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_chunks_of_any_size(parts: list[str], sizes: list[int]) -> None:
    lines: list[str] = []

    class Heard(RunDirectory):
        def read_line(self, line: str) -> None:
            lines.append(line)

    told, passed, text = StatusLines(Heard(Path()), "tok"), b"", "".join(parts).encode()
    turn = 0
    while text:
        size = sizes[turn % len(sizes)]
        passed += told.feed(text[:size])
        text, turn = text[size:], turn + 1
    passed += told.finish()
    assert passed.decode() == "".join(part for part in parts if part != OURS)
    assert lines == [OURS.removesuffix("\n")] * parts.count(OURS)


def test_what_is_for_people_passes_at_once(tmp_path: Path) -> None:
    told = StatusLines(RunDirectory(tmp_path), "tok")
    assert told.feed(b"45 %\r") == b"45 %\r"
    assert told.feed(b"no newline yet") == b"no newline yet"
    assert told.feed(OURS.encode() + b"after") == b"after"
    assert RunDirectory(tmp_path).record() == {"complete": True}


@pytest.mark.parametrize("end", [10, 30, len(OURS) - 1])
def test_half_a_line_is_no_success(tmp_path: Path, end: int) -> None:
    told = StatusLines(RunDirectory(tmp_path), "tok")
    told.feed(OURS.encode()[:end])
    told.finish()
    assert RunDirectory(tmp_path).record() is None


def test_a_line_that_was_cut_in_two(tmp_path: Path) -> None:
    told = StatusLines(RunDirectory(tmp_path), "tok")
    assert told.feed(OURS.encode()[:30] + b"lost\nmore\n") == b"more\n"
    assert RunDirectory(tmp_path).record() is None
