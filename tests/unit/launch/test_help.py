"""`meshrun help`: every page of docs/ on a terminal; tests/smoke.py reads one from the wheel."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshrun.launch.cli.main import main
from meshrun.launch.help import COMMENT, OF_THE_SITE, pages, rendered

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_every_page_has_a_topic_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {
        path
        for path in DOCS.rglob("*.md")
        if path.relative_to(DOCS).as_posix() not in OF_THE_SITE and path.parent.name != "python"
    }
    assert {*pages(DOCS).values()} == wanted
    assert main(["help"]) == 0
    listed = re.findall(r"^  (\S+) +\S", capsys.readouterr().out, re.MULTILINE)
    assert listed == [*pages(DOCS)]


def test_a_page_in_a_pipe_is_its_source_without_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "sharp-edges"]) == 0
    assert capsys.readouterr().out == (DOCS / "sharp-edges.md").read_text()
    source = (DOCS / "streaming.md").read_text()
    assert "<!--" in source
    assert main(["help", "streaming"]) == 0
    assert capsys.readouterr().out == COMMENT.sub("", source)


def test_a_comment_on_a_line_of_its_own_leaves_no_empty_line() -> None:
    shown = COMMENT.sub("", "a\n\n<!-- made by x -->\n| a |\n<!-- end -->\nb <!--{c:d}-->1<!--/--> GB/s\n")
    assert shown == "a\n\n| a |\nb 1 GB/s\n"


def test_a_page_on_a_terminal_goes_through_the_pager(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {shown}\n")
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("meshrun")), "help", "exit-statuses"]
    environment = {**os.environ, "PAGER": str(pager), "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run(command, stdin=theirs, stdout=theirs, env=environment, timeout=60, check=True)
    os.close(ours)
    os.close(theirs)
    assert "Exit statuses" in shown.read_text()


def test_a_rendered_page_keeps_every_word_and_fits() -> None:
    text = "![A picture](a.png)\n\nSee [the page](b.md).\n\n| abcdefgh | b |\n| - | - |\n| 12345678 | x |\n"
    plain = re.sub(r"\x1b\[[\d;]*m", "", rendered(text, 12))
    assert "".join(plain.split()).startswith("Seethepage.")
    assert "picture" not in plain
    assert "\u2026" not in plain
    assert max(map(len, plain.splitlines())) <= 12
    for digit in "12345678":
        assert digit in plain


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["help", "doctor"], 0, "Usage: meshrun doctor"),
        (["help", "stream"], 2, "Did you mean 'streaming'?"),
        (["help", "xyzzy"], 2, "There is no page or command 'xyzzy'. meshrun help lists the pages."),
        (["help", ""], 2, "empty argument"),
        (["-n", "2", "help"], 2, "starts no ranks"),
    ],
)
def test_other_topics(words: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == status
    shown = capsys.readouterr()
    assert says in (shown.err if status else shown.out)
