"""Check the English of README.md, CONTRIBUTING.md and docs/: nox -s lint.

python docs/prose.py             print what to mend, with its line; fail if there is anything
python docs/prose.py --table     also print, for each page, the mean length of a sentence and the share of long ones

On each page the mean sentence has at most 18 words, and at most 8 % of the sentences have more than 30. A
paragraph has at most 80 words. PATTERNS are phrasings that readers stumble over, each with what to write
instead. Programs and outputs are left out; a piece of inline code is one word. Cells of tables are searched
for the patterns; those of more than 30 words also count as sentences.

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

ITEMS = "rank|step|cell|host|GPU|block|chunk|call|launch|process|element|second|array|pair|rail|frame"
COUNTED = r"\d[\d.,]*|#|[KMGT]i?B(?:/s)?|one|two|three|four|five|eight|twice|once|%|TFLOP/s"
PATTERNS = {
    'write "per"': rf"(?<!\w)(?:{COUNTED})(?: (?!of|in|on|than|that|is|if)[\w/]+)? an? (?:{ITEMS})\b(?!'s|-| is\b)",
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
        r"\b(?:climb\w*|sittings?|referees?|fed|(?:(?:all|first|in|of|five|14|some|most|half) )looks|looks (?:so|are))\b"
    ),
    "only people do this": (
        r"\b(?:believe[sd]?|forgiv\w*|waits? for nobody|knows? (?:no|nothing)|wants?|wanted|nobody waits)\b"
    ),
    "leave history to the changelog": r"\b(?:no longer|used to (?!it)|formerly|nowadays|until now)\b",
    'write "except for"': r"\bbut for\b",
}
CHAIN = re.compile(r";[^;]*;|: .*: ")  # of a sentence that is two


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
    # Programs and comments leave empty lines behind, so that lines keep their numbers.
    for hidden in (r"^( *)```.*?^\1```$", r"\A---\n.*?^---$", r"^<style>.*?</style>$"):
        text = re.sub(hidden, lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\[[^\]]*\]", r"\1", text)
    text = re.sub(r"``?([^`]+)``?", lambda match: "`" + "\n" * match[1].count("\n") + "code`", text)
    text = re.sub(r"<[^>\n]+>|\*\*|&nbsp;|\{[.:#][^}]*\}", "", text)
    begin, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        table, item = line.lstrip().startswith("|"), re.match(r" *(?:[-*+]|\d+\.) ", line)
        if table or item or not line.strip() or line.startswith(("#", ":::", "!!!", "???", ">")):
            if lines:
                yield begin, " ".join(lines), False
            begin, lines = number, []
            if table:
                yield from ((number, cell.strip(), True) for cell in line.strip().strip("|").split("|"))
            elif item:
                lines = [line[item.end() :].strip()]
            continue
        begin = begin if lines else number
        lines.append(line.strip())


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a page."""
    for line, paragraph, in_table in paragraphs(text):
        for part in re.split(r"(?<=[.!?])['\")*]*\s+(?=[^a-z]|meshrun\b)", paragraph):
            if part:
                yield Sentence(line, part, in_table)


def main(pages: list[Path], table: bool) -> int:
    """Check the pages; the status is 1 if there is something to mend."""
    failed = False
    for page in pages:
        text, name = page.read_text(), page.relative_to(ROOT)
        every = list(sentences(text))
        told = [one.words for one in every if one.words > (LONG_SENTENCE if one.in_table else 2)]
        mean = sum(told) / max(len(told), 1)
        long = sum(words > LONG_SENTENCE for words in told) / max(len(told), 1)
        findings = [
            f"{name}:{one.line}: {advice}: {match[0]!r} in: {one.text}"
            for one in every
            for advice, pattern in PATTERNS.items()
            if (match := re.search(pattern, one.text))
        ]
        findings += [
            f"{name}:{one.line}: make two sentences: {one.text}"
            for one in every
            if CHAIN.search(one.text) and not one.in_table
        ]
        findings += [
            f"{name}:{line}: make two paragraphs: {len(paragraph.split())} words"
            for line, paragraph, in_table in paragraphs(text)
            if len(paragraph.split()) > LONG_PARAGRAPH
        ]
        if mean > MEAN_WORDS or (long > LONG_SHARE and len(told) > 12):
            findings += [f"{name}: the mean sentence has {mean:.1f} words; {long:.0%} have more than {LONG_SENTENCE}"]
            findings += [
                f"{name}:{one.line}: {one.words} words: {one.text}" for one in every if one.words > LONG_SENTENCE
            ]
        if table:
            print(f"{name!s:40} {len(told):5d} sentences, mean {mean:4.1f} words, {long:4.0%} over {LONG_SENTENCE}")
        print(*findings, sep="\n", end="\n" if findings else "")
        failed |= bool(findings)
    return int(failed)


if __name__ == "__main__":
    chosen = [Path(name).resolve() for name in sys.argv[1:] if not name.startswith("--")]
    every_page = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    sys.exit(main(chosen or every_page, "--table" in sys.argv))
