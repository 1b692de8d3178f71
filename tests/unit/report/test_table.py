"""Columns and rows as text: alignment, cutting, and cells that mean something to rich."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from meshrun.runner.report.table import table

ROWS = [("read", "1.5 GB", "n1"), ("kernel", "12.5 GB", "n12")]


def test_text_is_aligned_left_and_numbers_right() -> None:
    assert table(("stage", "bytes", "host"), ROWS, left=(0, 2)) == [
        "  stage     bytes  host",
        "  read     1.5 GB  n1",
        "  kernel  12.5 GB  n12",
    ]


def test_no_line_for_heads_that_are_all_empty() -> None:
    assert table(("", "", ""), ROWS, indent=0) == ["read     1.5 GB   n1", "kernel  12.5 GB  n12"]


def test_without_rows_the_heads_stay() -> None:
    assert table(("stage", "bytes"), []) == ["  stage  bytes"]


def test_a_table_that_fits_is_not_cut() -> None:
    assert table(("stage", "bytes", "host"), ROWS, elastic=(0,), width=23) == table(
        ("stage", "bytes", "host"), ROWS
    )


def test_the_widest_elastic_column_is_cut_first() -> None:
    rows = [("a" * 20, "1", "b" * 12)]
    assert table(("host", "rank", "cores"), rows, left=(0, 2), elastic=(0, 2), width=32, indent=0) == [
        "host          rank  cores",
        "aaaaaaaaa...     1  bbbbbbbbbbbb",
    ]
    narrow = table(("host", "rank", "cores"), rows, left=(0, 2), elastic=(0, 2), width=24, indent=0)
    assert narrow == ["host      rank  cores", "aaaaa...     1  bbbbb..."]


def test_what_is_not_elastic_is_never_cut() -> None:
    assert table(("host",), [("a" * 200,)], width=20) == ["  host", "  " + "a" * 200]
    assert table(("host", "x"), [("a" * 200, "b")], elastic=(1,), width=20)[1] == "  " + "a" * 200 + "  b"


def test_markup_and_emoji_are_text() -> None:
    (line,) = table(("", ""), [("[red]edges[/]", ":smile: [1]")], left=(0, 1), indent=0)
    assert line == "[red]edges[/]  :smile: [1]"


def test_wide_characters_are_counted_as_they_are_drawn() -> None:
    lines = table(("name", "bytes"), [("画像", "1"), ("ab", "22")], indent=0)
    assert [cell_len(line) for line in lines] == [11, 11, 11]


def test_the_terminal_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = table(("stage", "bytes"), [("a" * 200, "1")])
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "20", "TTY_COMPATIBLE": "1"}.items():
        monkeypatch.setenv(name, value)
        assert table(("stage", "bytes"), [("a" * 200, "1")]) == plain


def test_a_row_is_one_line_whatever_is_in_it() -> None:
    assert table(("", ""), [("a\nb\x7f", "\x1b[1mc")], indent=0) == ["a?b?  ?[1mc"]
