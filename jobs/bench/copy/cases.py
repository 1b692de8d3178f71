"""nvbandwidth's test cases (0.8) with its names, order and titles, and one case for host memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.bench.copy import patterns
from jobs.bench.copy.patterns import CopyTransfers, Pattern

EngineName = Literal["ce", "sm", "split", "chase", "host"]
ReportedRate = Literal["first", "total", "each"]


@dataclass(frozen=True)
class Case:
    """One test case.

    engine: a copy engine ("ce"), a kernel ("sm"), a kernel that copies both ways ("split"), a kernel that
    follows a chain of addresses ("chase"), the CPU ("host"). rows: the meaning of a row of the matrix.
    reports: the rate of the first transfer ("first"), of all by the time until the last ends ("total"), or of
    each and their sum ("each"). arrow: direction, for titles. about: a line of help.
    """

    name: str
    engine: EngineName
    arrow: str
    transfers: Pattern
    rows: Literal["host", "gpus"] = "host"
    reports: ReportedRate = "first"
    about: str = ""

    @property
    def unit(self) -> str:
        return "ns" if self.engine == "chase" else "GB/s"

    @property
    def needs_gpu(self) -> bool:
        return self.engine != "host"

    @property
    def path(self) -> Literal["peer", "host", "local"]:
        """The path of the bytes: between GPUs, between host and GPU, or inside a memory."""
        transfers = self.transfers(2, 0, 1)
        if all(transfer.between_gpus for transfer in transfers):
            return "peer"
        return "host" if transfers[0].source.kind != transfers[0].target.kind else "local"

    @property
    def matrices(self) -> tuple[tuple[str, str], ...]:
        """The key and the title of each matrix."""
        if self.engine == "chase":
            word = "memory latency" if self.rows == "host" else "Device to Device Latency"
            return ((self.name, f"{word} SM {self.arrow} (ns)"),)
        if self.engine == "host":
            return (
                (f"{self.name}_alone", f"memcpy local {self.arrow}, one at a time, bandwidth (GB/s)"),
                (f"{self.name}_together", f"memcpy local {self.arrow}, all at once, bandwidth (GB/s)"),
            )
        by = "local" if self.path == "local" else "CE" if self.engine == "ce" else "SM"
        if self.reports == "each":
            word = "read" if "read" in self.name else "write"
            parts = (f"{word}1", f"{word}2", "total")
            return tuple(
                (f"{self.name}_{part}", f"memcpy {by} {self.arrow} {part.capitalize()} bandwidth (GB/s)")
                for part in parts
            )
        return ((self.name, f"memcpy {by} {self.arrow} bandwidth (GB/s)"),)

    def cells(self, gpus: int) -> Iterator[tuple[int, int, CopyTransfers]]:
        """Yield (row, column, transfers) of the cells that have a value, for `gpus` GPUs."""
        for row in range(gpus if self.rows == "gpus" else 1):
            for column in range(gpus):
                transfers = self.transfers(gpus, row, column)
                if transfers:
                    yield row, column, transfers


UP, DOWN, BOTH = "CPU(row) -> GPU(column)", "CPU(row) <- GPU(column)", "CPU(row) <-> GPU(column)"
THERE, BACK, PEERS = "GPU(row) -> GPU(column)", "GPU(row) <- GPU(column)", "GPU(row) <-> GPU(column)"

Twin = tuple[str, str, Literal["host", "gpus"], ReportedRate, Pattern, EngineName, Pattern, str]
# Name, arrow, rows, reported rate, pattern of copy engines, kind of kernel, its pattern, help.
TWINS: tuple[Twin, ...] = (
    ("host_to_device_memcpy", UP, "host", "first", patterns.host_to_device, "sm", patterns.host_to_device,
     "Host to one GPU."),
    ("device_to_host_memcpy", DOWN, "host", "first", patterns.device_to_host, "sm", patterns.device_to_host,
     "One GPU to the host."),
    ("host_to_device_bidirectional_memcpy", BOTH, "host", "first", patterns.host_to_device_both, "split",
     patterns.host_to_device, "Host to one GPU, while bytes go back too."),
    # By kernel this is the same measurement as the case before, in nvbandwidth too.
    ("device_to_host_bidirectional_memcpy", BOTH, "host", "first", patterns.device_to_host_both, "split",
     patterns.host_to_device, "One GPU to the host, while bytes go back too."),
    ("device_to_device_memcpy_read", THERE, "gpus", "first", patterns.read, "sm", patterns.read,
     "The row's GPU reads the column's memory."),
    ("device_to_device_memcpy_write", BACK, "gpus", "first", patterns.write, "sm", patterns.write,
     "The row's GPU writes into the column's memory."),
    ("device_to_device_bidirectional_memcpy_read", PEERS, "gpus", "each", patterns.read_both, "sm",
     patterns.read_both, "Two GPUs read each other's memory."),
    ("device_to_device_bidirectional_memcpy_write", PEERS, "gpus", "each", patterns.write_both, "sm",
     patterns.write_both, "Two GPUs write into each other's memory."),
    ("all_to_host_memcpy", DOWN, "host", "first", patterns.all_to_host, "sm", patterns.all_to_host,
     "One GPU to the host, while all others do so too."),
    ("all_to_host_bidirectional_memcpy", BOTH, "host", "first", patterns.all_to_host_both, "split",
     patterns.all_to_host_split, "One GPU to the host, while all GPUs copy both ways."),
    ("host_to_all_memcpy", UP, "host", "first", patterns.host_to_all, "sm", patterns.host_to_all,
     "Host to one GPU, while it copies to all others too."),
    ("host_to_all_bidirectional_memcpy", BOTH, "host", "first", patterns.host_to_all_both, "split",
     patterns.host_to_all_split, "Host to one GPU, while all GPUs copy both ways."),
    ("all_to_one_write", BACK, "host", "total", patterns.all_to_one_write, "sm", patterns.all_to_one_write,
     "All other GPUs write into the column's memory: the sum."),
    ("all_to_one_read", THERE, "host", "total", patterns.all_to_one_read, "sm", patterns.all_to_one_read_sm,
     "From the column's memory to all other GPUs: the sum."),
    ("one_to_all_write", THERE, "host", "total", patterns.one_to_all_write, "sm", patterns.one_to_all_write,
     "The column's GPU writes into the memory of all others: the sum."),
    ("one_to_all_read", BACK, "host", "total", patterns.one_to_all_read, "sm", patterns.one_to_all_read_sm,
     "From the memory of all other GPUs to the column's: the sum."),
)  # fmt: skip

CASES: tuple[Case, ...] = (
    *(Case(f"{name}_ce", "ce", arrow, ce, rows, reports, about)
      for name, arrow, rows, reports, ce, _, _, about in TWINS),
    *(Case(f"{name}_sm", engine, arrow, sm, rows, reports, about)
      for name, arrow, rows, reports, _, engine, sm, about in TWINS),
    Case("host_device_latency_sm", "chase", BOTH, patterns.chase_host,
         about="A load of the column's GPU from the host's memory."),
    Case("device_to_device_latency_sm", "chase", PEERS, patterns.chase_peer, "gpus",
         about="A load of the row's GPU from the column's memory."),
    Case("device_local_copy", "ce", "GPU(column)", patterns.local,
         about="From one place of a GPU's memory to another."),
)  # fmt: skip
HOST = Case(
    "host_local_copy",
    "host",
    "CPU(row) rank(column)",
    patterns.own_host,
    about="From one place of the host's memory to another, by each rank; not nvbandwidth's.",
)
BY_NAME = {case.name: case for case in (*CASES, HOST)}


class UnknownCase(ValueError):
    """There is no such case; the text names similar ones."""


def chosen(words: Sequence[str], prefixes: Sequence[str] = ()) -> tuple[Case, ...]:
    """Select the cases with these names or indices, in that order, or with these prefixes, in nvbandwidth's.

    Raises UnknownCase.
    """
    if words:
        return tuple(dict.fromkeys(map(_named, words)))
    for prefix in prefixes:
        if not any(case.name.startswith(prefix) for case in CASES):
            raise UnknownCase(f"no test case begins with {prefix!r}; --list shows them")
    return tuple(case for case in CASES if case.name.startswith(tuple(prefixes)))


def _named(word: str) -> Case:
    if word.isdecimal():
        if int(word) < len(CASES):
            return CASES[int(word)]
        raise UnknownCase(f"test cases are numbered 0 to {len(CASES) - 1}, not {word}")
    if word in BY_NAME:
        return BY_NAME[word]
    near = difflib.get_close_matches(word, BY_NAME, 3)
    hint = f"did you mean {', '.join(near)}?" if near else "--list shows them"
    raise UnknownCase(f"there is no test case {word!r}; {hint}")


def listing() -> str:
    """List index, name and description of every case, a line each."""
    numbers = {case.name: str(number) for number, case in enumerate(CASES)}
    width = max(map(len, BY_NAME))
    lines = [
        f"{numbers.get(case.name, '-'):>2}, {case.name + ':':{width + 1}} {case.about}"
        for case in BY_NAME.values()
    ]
    return "\n".join(["Index, Name: Description", "=" * 23, *lines]) + "\n"
