"""docs/prose.py finds the phrasings and lengths that it is for, and nothing in good sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts import load

PROSE = load(Path(__file__).parents[2] / "docs" / "prose.py")


def advice(text: str) -> list[Any]:
    return list(PROSE.findings(text))


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("It moves 1.05 GB/s a rank.", "It moves 1.05 GB/s per rank."),
        ("It takes 8 bytes a cell.", "One byte of a cell is read."),
        ("The kernel runs beside the copy.", "The kernel runs while the copy does."),
        ("A wrong key is always refused.", "meshrun rejects a wrong key."),
        ("It is compiled where it can be.", "It is compiled if a compiler is installed."),
        ("Of a picture, only the header is read.", "Of course, the header is read."),
        ("So does a transpose.", "So the transpose is faster."),
        ("It is clear in half of its looks.", "It looks at the file."),
        ("A climb ends after 600 s.", "A run ends after 600 s."),
        ("A header is not believed.", "A header is checked."),
        ("The host no longer answers.", "The host does not answer."),
        ("All agree, but for the last.", "All agree, except for the last."),
        ("It reads; it computes; it writes.", "It reads and computes; then it writes."),
        ("There is one rule: it ends: always.", "There is one rule: it ends."),
    ],
)
def test_a_phrasing_is_found_in_text_and_not_in_code(bad: str, good: str) -> None:
    assert [line for line, _ in advice(f"# Title\n\n{bad}\n")] == [3]
    assert advice(good) == advice(f"`{bad}`") == advice(f"```\n{bad}\n```") == advice(f"<!-- {bad} -->") == []


def test_a_line_is_counted_behind_what_is_left_out() -> None:
    hidden = "```\na\nb\n```\n<!--\nc\n-->\n\n[a\nlink](x.md) and `code\nover lines`.\n"
    text = f"{hidden}\n| kept | It is refused. |\n"
    assert [line for line, _ in advice(text)] == [13]


def test_a_paragraph_of_many_words_is_found() -> None:
    assert [line for line, _ in advice("Five words are in this. " * 16)] == []
    assert [words for _, words in advice("Five words are in this. " * 17)] == [
        "make two paragraphs: 85 words"
    ]


def test_long_sentences_are_found_where_there_are_too_many() -> None:
    long = "- It " + "is " * 30 + "so.\n"
    assert advice("- A short one.\n" * 40 + long * 3) == []
    assert [line for line, _ in advice("- A short one.\n" * 30 + long * 3)] == [1, 31, 32, 33]


def test_sentences_of_a_mean_above_the_limit_are_found() -> None:
    assert advice(("- It " + "is " * 16 + "so.\n") * 3) == []
    assert len(advice(("- It " + "is " * 17 + "so.\n") * 3)) == 1


def test_sentences_in_tables_count_and_labels_do_not() -> None:
    assert PROSE.lengths(
        "| a label | of few words |\n| - | - |\n| `x` | a cell of as many words as a sentence |\n"
    ) == [9]


def test_inline_code_is_one_word() -> None:
    assert PROSE.lengths("Type `meshrun -n 4 run laplacian` to run it.") == [5]
