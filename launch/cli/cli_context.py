"""The context of a command: the options before its name, and the terminal."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshrun.runner.system.launcher import Started


@dataclass(frozen=True)
class CliContext:
    """Options before the command's name; `click.Context.obj` of every command.

    started: -n, and what the process that started this rank has passed. columns: the terminal's width if rank
    0 may draw a progress bar. colour: standard output is a terminal. words: the command and its arguments.
    """

    started: Started
    columns: int | None = None
    colour: bool = False
    words: tuple[str, ...] = ()


def terminal_columns() -> int | None:
    """The width of the terminal on stderr, 80 if unknown; None without a terminal."""
    return (os.get_terminal_size(2).columns or 80) if sys.stderr.isatty() else None
