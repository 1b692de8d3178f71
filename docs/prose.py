"""Check the English of README.md, CONTRIBUTING.md and docs/: nox -s lint.

python docs/prose.py [PAGE...]            print what to mend, with its line; fail if there is anything
python docs/prose.py --table [PAGE...]    print the mean length of sentences, and the share of long ones

On each page the mean sentence has at most 18 words, and at most 8 % of the sentences, or one of them, have
more than 30. A paragraph has at most 80 words. PATTERNS are phrasings that readers stumble over, each with
what to write instead. Programs and outputs are left out; a piece of inline code is one word. Cells of tables
are searched for the patterns, and count as sentences from eight words on.

Vale checks the same, but its package on PyPI downloads the program from elsewhere when it first runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEAN_WORDS, LONG_SENTENCE, LONG_SHARE, LONG_PARAGRAPH = 18, 30, 0.08, 80
LABEL = 8  # words of a cell of a table below which it is no sentence

ITEMS = (
    "rank|step|cell|host|GPU|block|chunk|call|launch|process|element|second|array|pair|rail|frame|run|file"
)
COUNTED = r"\d[\d.,]*|[KMGT]i?B(?:/s)?|one|two|three|four|five|eight|twice|once|%|TFLOP/s"
LINKS = (
    "of|in|on|to|than|that|is|if|as|by|for|with|from|and|or|but"  # before an "a rank" that is not "per rank"
)
PATTERNS = {
    'write "per"': rf"(?<!\w)(?:{COUNTED})(?: (?!(?:{LINKS})\b)[\w/]+)? an? (?:{ITEMS})\b(?!'s|-| is\b)",
    'write "while", "overlapped with", "next to" or "compared with"': r"\b[Bb]eside\b",
    "say who does it: meshrun rejects, reports, fails with": (
        r"\b(?:is|are|was|were|be|been|being|gets?) (?:\w+ )?(?:refused|told)\b"
    ),
    "write the noun": (
        r"\bwhere (?:it|they) can(?:not)? be\b|\b(?:and|so) (?:is|are|does|do|has|have) (?:it|they|one)\b"
        r"|(?<!as )\b(?:is|are|be) none\b|\bthose that it\b|\bone that does\b|\bas it was\b"
    ),
    "begin with the subject": r"^(?:Of (?!course)|Nor\b|There, |So (?:is|are|do|does|has|have)\b|Not of\b)",
    "use the standard word": (
        r"\bclimb\w*|\b(?:sittings?|referees?)\b|\blooks (?:so|are)\b"
        r"|\b(?:all|first|in|of|one|two|three|five|some|most|half|its|\d+)(?: the)? looks?\b(?! like| at\b)"
    ),
    "only people do this": r"\b(?:believe[sd]?|forgiv\w*|waits? for nobody|knows? nothing|want(?:s|ed)?)\b",
    "leave history to the changelog": r"\b(?:no longer|used to (?!it)|formerly|nowadays|until now)\b",
    'write "except for"': r"\bbut for\b",
}
CHAIN = re.compile(r";[^;]*;|: .*: ")  # in a sentence that is two


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page: its line, its words, and whether it is in a cell of a table."""

    line: int
    text: str
    in_table: bool

    @property
    def words(self) -> int:
        """How many words it has; a piece of inline code is one."""
        return sum(any(sign.isalnum() for sign in word) for word in self.text.split())


def paragraphs(text: str) -> Iterator[tuple[int, str, bool]]:
    """The paragraphs, items of lists and cells of tables of a page: line, text, whether it is a cell."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")  # the lines after it keep their numbers

    # Leave out programs, styles and comments, and take links and code for what a reader sees.
    for hidden in (r"^( *)```.*?^\1```$", r"\A---\n.*?^---$", r"^<style>.*?</style>$", r"<!--.*?-->"):
        text = re.sub(hidden, blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", blank, text)
    text = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"``?([^`]+)``?", lambda match: f"`{blank(match)}code`", text)
    text = re.sub(r"<[^>\n]+>|\*\*|&nbsp;|\{[.:#][^}]*\}", "", text)

    # Headings, items and rows of tables end a paragraph, as an empty line does.
    begin, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        in_table, item = line.lstrip().startswith("|"), re.match(r" *(?:[-*+]|\d+\.) ", line)
        if in_table or item or not line.strip() or line.startswith(("#", ":::", "!!!", "???", ">")):
            if lines:
                yield begin, " ".join(lines), False
            begin, lines = number, [line[item.end() :].strip()] if item else []
            if in_table:
                yield from ((number, cell.strip(), True) for cell in line.strip().strip("|").split("|"))
            continue
        begin = begin if lines else number
        lines.append(line.strip())


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a page."""
    for line, paragraph, in_table in paragraphs(text):
        for part in re.split(r"(?<=[.!?])['\")*]*\s+(?=[^a-z]|meshrun\b)", paragraph):
            if part:
                yield Sentence(line, part, in_table)


def lengths(text: str) -> list[int]:
    """The words of each sentence of a page that counts; labels in tables do not."""
    return [one.words for one in sentences(text) if one.words >= (LABEL if one.in_table else 3)]


def findings(text: str) -> Iterator[tuple[int, str]]:
    """What to mend on a page: line and advice."""
    for one in sentences(text):
        for advice, pattern in PATTERNS.items():
            if match := re.search(pattern, one.text):
                yield one.line, f"{advice}: {match[0]!r} in: {one.text}"
        if CHAIN.search(one.text) and not one.in_table:
            yield one.line, f"make two sentences: {one.text}"
    for line, paragraph, _ in paragraphs(text):
        if len(paragraph.split()) > LONG_PARAGRAPH:
            yield line, f"make two paragraphs: {len(paragraph.split())} words"

    # The page as a whole
    words = lengths(text)
    long = sum(count > LONG_SENTENCE for count in words)
    if sum(words) > MEAN_WORDS * len(words) or long > max(1, LONG_SHARE * len(words)):
        mean, share = sum(words) / len(words), long / len(words)
        yield (
            1,
            f"shorten sentences: their mean is {mean:.1f} words, {share:.0%} have more than {LONG_SENTENCE}",
        )
        for one in sentences(text):
            if one.words > LONG_SENTENCE:
                yield one.line, f"{one.words} words: {one.text}"


def main(words: list[str]) -> int:
    """Check the pages, all unless named; the status is 1 if there is something to mend."""
    every = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = [Path(word).resolve() for word in words if word != "--table"] or every
    failed = False
    for page in pages:
        name, text = page.relative_to(ROOT), page.read_text()
        if "--table" in words:
            count = lengths(text)
            mean = sum(count) / max(len(count), 1)
            share = sum(one > LONG_SENTENCE for one in count) / max(len(count), 1)
            print(f"{name!s:42} {len(count):4d} sentences, mean {mean:4.1f} words, {share:3.0%} long")
        for line, advice in findings(text):
            failed = True
            print(f"{name}:{line}: {advice}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
