"""nvbandwidth's test cases (0.10) with its names, order and titles, and one case for host memory.

The simultaneous transfers of a cell are written as "hc>c@c c>hc@c*2": from host memory near the column's GPU
to that GPU, moved by it; and back, with twice the buffer's size. r, c, o: the row's GPU, the column's, and
each other one. The sizes, and the GPU that moves the bytes, are those of nvbandwidth.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

EngineName = Literal["ce", "sm", "tma", "read", "write", "split", "chase", "chase_tma", "host"]
LATENCY = ("chase", "chase_tma")
NEEDS_TMA = ("tma", "chase_tma")
TMA_CAPABILITY = 90  # Hopper
ReportedRate = Literal["first", "total", "each"]
TRANSFER = re.compile(r"(h?)([rco])>(h?)([rco])@([rco])(?:\*(\d))?")


@dataclass(frozen=True)
class MemoryPlace:
    """Memory of GPU `gpu`, by its number in the matrix, or host memory near that GPU."""

    kind: Literal["host", "gpu"]
    gpu: int

    def __str__(self) -> str:
        return f"GPU {self.gpu}" if self.kind == "gpu" else "host"


@dataclass(frozen=True)
class CopyTransfer:
    """A copy from source to target, done by `gpu`. factor: times the buffer size."""

    source: MemoryPlace
    target: MemoryPlace
    gpu: int
    factor: int = 1

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}" + (f" by GPU {self.gpu}" if self.between_gpus else "")

    @property
    def between_gpus(self) -> bool:
        return {self.source.kind, self.target.kind} == {"gpu"} and self.source != self.target


CopyTransfers = tuple[CopyTransfer, ...]


@dataclass(frozen=True)
class Case:
    """One test case.

    engine: a copy engine ("ce"), a kernel ("sm"), the tensor memory accelerator ("tma"), kernels that only
    read or write ("read", "write"), a kernel that copies both ways ("split"), one that follows a chain of
    addresses ("chase"), also by the accelerator ("chase_tma"), the CPU ("host").

    arrow: direction, for titles. pattern: the
    transfers of a cell. rows: the meaning of a row of the matrix. reports: the rate of the first transfer
    ("first"), of all by the time until the last ends ("total"), or of each and their sum ("each"). about: a
    line of help.
    """

    name: str
    engine: EngineName
    arrow: str
    pattern: str
    rows: Literal["host", "gpus"] = "host"
    reports: ReportedRate = "first"
    about: str = ""

    @property
    def unit(self) -> str:
        return "ns" if self.engine in LATENCY else "GB/s"

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
        if self.engine in LATENCY:
            word = "memory latency" if self.rows == "host" else "Device to Device Latency"
            return ((self.name, f"{word} {'SM' if self.engine == 'chase' else 'TMA'} {self.arrow} (ns)"),)
        if self.engine in ("read", "write"):
            return ((self.name, f"memcpy local {self.engine} SM {self.arrow} bandwidth (GB/s)"),)
        if self.engine == "host":
            return (
                (f"{self.name}_alone", f"memcpy local {self.arrow}, one at a time, bandwidth (GB/s)"),
                (f"{self.name}_together", f"memcpy local {self.arrow}, all at once, bandwidth (GB/s)"),
            )
        by = {"ce": "CE", "tma": "TMA"}.get(self.engine, "SM")
        if self.path == "local":
            by = "local" if self.engine == "ce" else f"local {by}"
        if self.reports == "each":
            word = "read" if "read" in self.name else "write"
            parts = (f"{word}1", f"{word}2", "total")
            return tuple(
                (f"{self.name}_{part}", f"memcpy {by} {self.arrow} {part.capitalize()} bandwidth (GB/s)")
                for part in parts
            )
        return ((self.name, f"memcpy {by} {self.arrow} bandwidth (GB/s)"),)

    def transfers(self, gpus: int, row: int, column: int) -> CopyTransfers:
        """Return the simultaneous transfers of a cell, for `gpus` GPUs; () for a cell without a value."""
        if "r" in self.pattern and row == column:
            return ()
        found = []
        for each, group in groupby(TRANSFER.findall(self.pattern), key=lambda words: "o" in words):
            transfers = list(group)
            for other in [gpu for gpu in range(gpus) if gpu != column] if each else [column]:
                gpu = {"r": row, "c": column, "o": other}
                found += [
                    CopyTransfer(
                        MemoryPlace("host" if from_host else "gpu", gpu[source]),
                        MemoryPlace("host" if to_host else "gpu", gpu[target]),
                        gpu[by],
                        int(factor or 1),
                    )
                    for from_host, source, to_host, target, by, factor in transfers
                ]
        return tuple(found)

    def cells(self, gpus: int) -> Iterator[tuple[int, int, CopyTransfers]]:
        """Yield (row, column, transfers) of the cells that have a value, for `gpus` GPUs."""
        for row in range(gpus if self.rows == "gpus" else 1):
            for column in range(gpus):
                transfers = self.transfers(gpus, row, column)
                if transfers:
                    yield row, column, transfers


UP, DOWN, BOTH = "CPU(row) -> GPU(column)", "CPU(row) <- GPU(column)", "CPU(row) <-> GPU(column)"
THERE, BACK, PEERS = "GPU(row) -> GPU(column)", "GPU(row) <- GPU(column)", "GPU(row) <-> GPU(column)"

# Interfering transfers have twice the size of the measured one, so that they last at least as long.
TO_GPU, TO_HOST, OTHERS = "hc>c@c", "c>hc@c", "o>ho@o*2 ho>o@o*2"
Twin = tuple[str, str, Literal["host", "gpus"], ReportedRate, str, EngineName, str, str]
# Name, arrow, rows, reported rate, pattern of copy engines, kind of kernel, its pattern, help.
TWINS: tuple[Twin, ...] = (
    ("host_to_device_memcpy", UP, "host", "first", TO_GPU, "sm", TO_GPU, "Host to one GPU."),
    ("device_to_host_memcpy", DOWN, "host", "first", TO_HOST, "sm", TO_HOST, "One GPU to the host."),
    ("host_to_device_bidirectional_memcpy", BOTH, "host", "first", f"{TO_GPU} c>hc@c*2", "split", TO_GPU,
     "Host to one GPU, while bytes go back too."),
    # By kernel this is the same measurement as the case before, in nvbandwidth too.
    ("device_to_host_bidirectional_memcpy", BOTH, "host", "first", f"{TO_HOST} hc>c@c*2", "split", TO_GPU,
     "One GPU to the host, while bytes go back too."),
    ("device_to_device_memcpy_read", THERE, "gpus", "first", "c>r@r", "sm", "c>r@r",
     "The row's GPU reads the column's memory."),
    ("device_to_device_memcpy_write", BACK, "gpus", "first", "r>c@r", "sm", "r>c@r",
     "The row's GPU writes into the column's memory."),
    ("device_to_device_bidirectional_memcpy_read", PEERS, "gpus", "each", "c>r@r r>c@c", "sm", "c>r@r r>c@c",
     "Two GPUs read each other's memory."),
    ("device_to_device_bidirectional_memcpy_write", PEERS, "gpus", "each", "c>r@c r>c@r", "sm", "c>r@c r>c@r",
     "Two GPUs write into each other's memory."),
    ("all_to_host_memcpy", DOWN, "host", "first", f"{TO_HOST} o>ho@o*2", "sm", f"{TO_HOST} o>ho@o*2",
     "One GPU to the host, while all others do so too."),
    ("all_to_host_bidirectional_memcpy", BOTH, "host", "first", f"{TO_HOST} hc>c@c*2 {OTHERS}", "split",
     f"{TO_HOST} o>ho@o", "One GPU to the host, while all GPUs copy both ways."),
    ("host_to_all_memcpy", UP, "host", "first", f"{TO_GPU} ho>o@o*2", "sm", f"{TO_GPU} ho>o@o*2",
     "Host to one GPU, while it copies to all others too."),
    ("host_to_all_bidirectional_memcpy", BOTH, "host", "first", f"{TO_GPU} c>hc@c*2 {OTHERS}", "split",
     f"{TO_GPU} o>ho@o", "Host to one GPU, while all GPUs copy both ways."),
    ("all_to_one_write", BACK, "host", "total", "o>c@o", "sm", "o>c@o",
     "All other GPUs write into the column's memory: the sum."),
    # In the two reading cases, nvbandwidth's kernels run on the source GPU, its copy engines on the target.
    ("all_to_one_read", THERE, "host", "total", "c>o@o", "sm", "c>o@c",
     "From the column's memory to all other GPUs: the sum."),
    ("one_to_all_write", THERE, "host", "total", "c>o@c", "sm", "c>o@c",
     "The column's GPU writes into the memory of all others: the sum."),
    ("one_to_all_read", BACK, "host", "total", "o>c@c", "sm", "o>c@o",
     "From the memory of all other GPUs to the column's: the sum."),
)  # fmt: skip

CASES: tuple[Case, ...] = (
    *(Case(f"{name}_ce", "ce", arrow, ce, rows, reports, about)
      for name, arrow, rows, reports, ce, _, _, about in TWINS),
    *(Case(f"{name}_sm", engine, arrow, sm, rows, reports, about)
      for name, arrow, rows, reports, _, engine, sm, about in TWINS),
    Case("host_device_latency_sm", "chase", BOTH, TO_GPU,
         about="A load of the column's GPU from the host's memory."),
    Case("device_to_device_latency_sm", "chase", PEERS, "c>r@r", "gpus",
         about="A load of the row's GPU from the column's memory."),
    Case("device_to_device_memcpy_read_tma", "tma", THERE, "c>r@r", "gpus",
         about="The row's GPU reads the column's memory by its accelerator of bulk copies."),
    Case("device_to_device_memcpy_write_tma", "tma", BACK, "r>c@r", "gpus",
         about="The row's GPU writes into the column's memory by its accelerator of bulk copies."),
    Case("device_to_device_bidirectional_memcpy_read_tma", "tma", PEERS, "c>r@r r>c@c", "gpus", "each",
         about="Two GPUs read each other's memory by bulk copies."),
    Case("device_to_device_bidirectional_memcpy_write_tma", "tma", PEERS, "c>r@c r>c@r", "gpus", "each",
         about="Two GPUs write into each other's memory by bulk copies."),
    Case("device_local_copy", "ce", "GPU(column)", "c>c@c",
         about="From one place of a GPU's memory to another."),
    Case("device_local_copy_sm", "sm", "GPU(column)", "c>c@c",
         about="From one place of a GPU's memory to another, by a kernel."),
    Case("device_local_read_sm", "read", "GPU(column)", "c>c@c",
         about="A kernel that only reads the GPU's memory."),
    Case("device_local_write_sm", "write", "GPU(column)", "c>c@c",
         about="A kernel that only writes the GPU's memory."),
    Case("device_to_device_latency_tma", "chase_tma", PEERS, "c>r@r", "gpus",
         about="A bulk copy of 16 bytes of the row's GPU from the column's memory."),
    Case("device_local_copy_tma", "tma", "GPU(column)", "c>c@c",
         about="From one place of a GPU's memory to another, by bulk copies."),
)  # fmt: skip
HOST = Case(
    "host_local_copy",
    "host",
    "CPU(row) rank(column)",
    "hc>hc@c",
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
        if len(word) < 10 and int(word) < len(CASES):
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
