"""Columns and rows as aligned lines of text."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import JustifyMethod

GAP = 2  # spaces between columns
CUT = "..."  # the end of a cell that was cut; ASCII, for any terminal


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    elastic: Collection[int] = (),
    width: int | None = None,
    indent: int = 2,
) -> list[str]:
    """One line for the heads and one for each row, without trailing spaces.

    heads: one text per column; if all are empty, their line is omitted. rows: a cell for each column;
    unprintable characters, such as line ends, become "?".
    left: numbers of the columns aligned left; the others are aligned right. width: columns of the terminal or
    page; None: as wide as the cells. If the table is wider, cells of the columns in `elastic` are cut, the
    widest column first; without elastic columns it stays wider. indent: spaces before each line.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads, *rows = ([_printable(cell) for cell in row] for row in (heads, *rows))
    widths = _widths([heads, *rows], elastic, None if width is None else width - indent)
    grid = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=any(heads))
    for number, (head, columns) in enumerate(zip(heads, widths, strict=True)):
        justify: JustifyMethod = "left" if number in left else "right"
        grid.add_column(Text(_cut(head, columns)), justify=justify, width=columns, no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(_cut(cell, columns)) for cell, columns in zip(row, widths, strict=True)))
    text = io.StringIO()
    whole = sum(widths) + GAP * len(widths)
    # With width and height given, rich does not query the terminal.
    Console(
        file=text,
        width=whole,
        height=len(rows) + 1,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
    ).print(grid)
    return [(" " * indent + line).rstrip() for line in text.getvalue().splitlines()]


def _widths(lines: Sequence[Sequence[str]], elastic: Collection[int], room: int | None) -> list[int]:
    """Width of each column; elastic ones are reduced until all fit into `room`."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    while room is not None and sum(widths) + GAP * (len(widths) - 1) > room:
        widest = max(elastic, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= len(CUT):
            break
        widths[widest] -= 1
    return widths


def _printable(cell: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in cell)


def _cut(cell: str, columns: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return cell if cell_len(cell) <= columns else set_cell_size(cell, columns - len(CUT)) + CUT
