"""The context of a command: the options before its name, and the terminal."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launch.spec import HOST_TIMEOUT

if TYPE_CHECKING:
    from runner.system.launcher import Started


@dataclass(frozen=True)
class CliContext:
    """Options before the command's name; `click.Context.obj` of every command.

    ranks: -n. run, host_timeout, expect (hosts, ranks on each), network: from the process that started this
    rank. columns: the terminal's width if rank 0 may draw a progress bar. colour: standard output is a
    terminal. words: the command and its arguments. stall_timeout: as in `Started`.
    """

    ranks: int | None = None
    run: str | None = None
    host_timeout: float = HOST_TIMEOUT
    expect: tuple[int | None, int | None] = (None, None)
    network: str | None = None
    columns: int | None = None
    colour: bool = False
    words: tuple[str, ...] = ()
    stall_timeout: float | None = None

    @property
    def started(self) -> Started:
        from runner.system.launcher import Started

        return Started(
            self.ranks, self.run, self.host_timeout, *self.expect, self.network, self.stall_timeout
        )


def terminal_columns() -> int | None:
    """The width of the terminal on stderr, 80 if unknown; None without a terminal."""
    return (os.get_terminal_size(2).columns or 80) if sys.stderr.isatty() else None
