"""Draw the bars of the first page from benchmarks/results: python docs/rates.py

They are rates of whole commands, start and files included, of every tool that benchmarks/peers/run.py ran.
"""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "images" / "rates.svg"
RECORDS = {  # by the title of their bars
    "peers": "two cores of a CPU, {cells}, {steps} steps",
    "peers_h100": "H100 GPUs, {cells}, {steps} steps",
}
WIDTH, NAMES, BAR, LINE = 660, 272, 260, 30  # of the picture, the names, the longest bar; height of a line
STYLE = """text { font: 16px sans-serif; fill: #222 } .title { font-weight: bold }
rect { fill: #9aa5b1 } .ours { fill: #00796b }
@media (prefers-color-scheme: dark) { text { fill: #eee } .ours { fill: #4db6ac } }"""


def drawing() -> str:
    """The picture as SVG: a group of bars for each record, the fastest first, relative to its fastest."""
    lines, y = list[str](), 4
    for name, title in RECORDS.items():
        record = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        cells = " x ".join(map(str, record["shape"]))
        y += LINE
        shown = escape(title.format(cells=cells, steps=record["steps"]))
        lines.append(f'<text class="title" x="8" y="{y - 9}">{shown}</text>')

        # The time is the fastest of all rounds, so that a first one that compiles does not count.
        updates = math.prod(record["shape"]) * record["steps"]
        rates = {peer["name"]: updates / min(peer["every_second"]) / 1e9 for peer in record["peers"]}
        for peer, rate in sorted(rates.items(), key=lambda item: -item[1]):
            y += LINE
            length = BAR * rate / max(rates.values())
            kind = ' class="ours"' if peer.startswith("meshrun") else ""
            lines += [
                f'<text x="8" y="{y - 9}">{escape(peer)}</text>',
                f'<rect{kind} x="{NAMES}" y="{y - 25}" width="{length:.0f}" height="{LINE - 8}"/>',
                f'<text x="{NAMES + length + 8:.0f}" y="{y - 9}">{rate:.3g} Gcell/s</text>',
            ]
        y += 12
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *lines, "</svg>\n"])


if __name__ == "__main__":
    TARGET.write_text(drawing())
