"""What the scripts share that compare `meshrun bench` with another program: running, reading, reducing.

Not a script. The tables read here are in nccl-tests' layout, whichever program printed them.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

OURS = "meshrun"
PLACEMENTS = ("out-of-place", "in-place")

MEASURED = r"\s+(\d[\d.e+]*)\s+\S+\s+\S+\s+(\d[\d.e+]*|N/A)"  # time, algbw, busbw, #wrong
ROW = re.compile(rf"\s*(\d+)\s+(\d+)\s+(\w+)\s+\w+\s+-?\d+{MEASURED}{MEASURED}\s*")
ABSOLUTE = re.compile(r"(?<![^\s=:,\"'([])/(?:[^\s/]+/)*(?=[^\s/])")  # a path, up to its last part
HOST = re.compile(r"\bPid\s+\d+ on\s+\S+")


class Failed(Exception):
    """A program did not measure what it was asked for; says which and why."""


@dataclass(frozen=True)
class Row:
    """One size. microseconds, wrong: out of place, in place; wrong is None where the table says N/A."""

    size: int
    count: int
    datatype: str
    microseconds: tuple[float, float]
    wrong: tuple[float | None, float | None]

    @property
    def what(self) -> tuple[int, int, str]:
        return self.size, self.count, self.datatype


def rows_of(name: str, text: str) -> list[Row]:
    """The rows of the table that `name` printed, other lines passed over; Failed if none or one is wrong."""
    matches = filter(None, map(ROW.fullmatch, text.splitlines()))
    rows = [
        Row(int(size), int(count), datatype, (float(out), float(within)), (wrong(first), wrong(second)))
        for size, count, datatype, out, first, within, second in (match.groups() for match in matches)
    ]
    if not rows:
        raise Failed(f"{name} printed no row")
    bad = [row.size for row in rows if any(row.wrong)]
    if bad:
        raise Failed(f"{name} found wrong values at sizes {bad}")
    return rows


def wrong(word: str) -> float | None:
    return None if word == "N/A" else float(word)


def header_of(text: str) -> list[str]:
    """The comment lines before the first row that say something, without paths, hosts and process ids."""
    lines: list[str] = []
    for line in text.splitlines():
        if ROW.fullmatch(line):
            break
        if line.startswith("#") and line.strip("# "):
            lines.append(scrubbed(line.rstrip()))
    return lines


def scrubbed(text: str) -> str:
    """`text` without what is this machine's own: paths become their last part, hosts and processes go."""
    return ABSOLUTE.sub("", HOST.sub("Pid - on -", text))


def spread(values: Iterable[float]) -> dict[str, float]:
    taken = list(values)
    return {"median": statistics.median(taken), "min": min(taken), "max": max(taken)}


def shown(times: Mapping[str, float]) -> str:
    """A spread as the tables print it."""
    return f"{times['median']:.2f} ({times['min']:.2f} .. {times['max']:.2f})"


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """The names, another one first in every round."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def end_group(process: subprocess.Popen[Any]) -> None:
    """End all processes of a command that was started in a session of its own.

    A launcher that is asked to end takes its ranks along; one that is killed may leave them.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.communicate(timeout=10)


def output_of(name: str, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
    """What the command prints; Failed where it fails, or takes longer than `seconds`."""
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
    except OSError as reason:
        raise Failed(f"{name} did not start: {scrubbed(str(reason))}") from reason
    try:
        text, said = process.communicate(timeout=max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        end_group(process)
        raise Failed(f"{name} was stopped: not done in the {seconds:.0f} s that were left") from None
    if process.returncode:
        last = "\n".join((said.strip() or text.strip()).splitlines()[-20:])
        raise Failed(f"{name} ended with exit code {process.returncode}: {scrubbed(last)}")
    return text
