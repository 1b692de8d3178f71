"""Options of a run: those of nccl-tests 2.19.6 by long name, with its defaults, and our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshrun.jobs.measure.sizes import MIB


@dataclass(frozen=True)
class SweepSettings:
    """nccl-tests' options. Sizes in bytes. datatypes, reductions: of -d and -o, with `all` expanded. root: -1
    for all in turn. timeout: seconds without progress; 0 for no limit. cta_policy: None for the library's
    default.
    """

    minbytes: int = 32 * MIB
    maxbytes: int = 32 * MIB
    stepbytes: int = MIB
    stepfactor: int = 1
    iters: int = 20
    warmup_iters: int = 1
    agg_iters: int = 1
    run_cycles: int = 1
    average: int = 1
    check: int = 1
    reductions: tuple[str, ...] = ("sum",)
    datatypes: tuple[str, ...] = ("float",)
    root: int = 0
    blocking: int = 0
    stream_null: bool = False
    timeout: int = 0
    cudagraph: int = 0
    report_cputime: bool = False
    report_timestamps: bool = False
    local_register: int = 0
    cta_policy: int | None = None
    memory: bool = False
    unalign: int = 0
    per_iter_timing: bool = False
    per_iter_skip: int = 0

    def sizes(self) -> Sequence[int]:
        """Return the sizes to measure, in order."""
        if self.stepfactor == 1:
            return range(self.minbytes, self.maxbytes + 1, self.stepbytes)
        return self._growing(self.stepfactor)

    def warmup_sizes(self) -> Sequence[int]:
        """Return the sizes to warm up: always doubling, whatever the step is."""
        return self._growing(2)

    def _growing(self, factor: int) -> list[int]:
        sizes, size = [], self.minbytes
        while size <= self.maxbytes:
            sizes.append(size)
            size *= factor
        return sizes


Transport = Literal["nccl", "mpi"]


@dataclass(frozen=True)
class BenchOptions:
    """All options of a command. operations: measured in turn. names, wide: print more lines, more columns.
    steady: repeat the untimed call before the timed ones. show_tuning: print what the library chose. wires:
    count bytes on wires.
    sweep_tuning, channels: measure NCCL's algorithms and protocols, and these numbers of channels.
    transport: None for NCCL on GPUs and MPI on CPUs.
    output_file: of -J. csv: file of the rows. split, split_mask: as in nccl-tests' variables. min_busbw,
    link_rate: GB/s. spread, matrix, matrix_scale, experts, skew: of alltoallv. pairs: of pingpong."""

    operations: tuple[str, ...]
    settings: SweepSettings
    names: bool = False
    wide: bool = False
    steady: bool = True
    show_tuning: bool = False
    wires: bool = False
    sweep_tuning: bool = False
    channels: tuple[int, ...] = ()
    transport: Literal["nccl", "mpi", "both"] | None = None
    output_file: str | None = None
    json_lines: str | None = None
    csv: str | None = None
    plot: str | None = None
    split: str | None = None
    split_mask: str | None = None
    min_busbw: float | None = None
    spread: float = 1.0
    matrix: Path | None = None
    matrix_scale: float = 1.0
    experts: int | None = None
    skew: float = 1.0
    link_rate: float | None = None
    pairs: str = "ends"

    @property
    def transports(self) -> tuple[Transport | None, ...]:
        """The transports to measure in turn; None for the device's own."""
        return ("nccl", "mpi") if self.transport == "both" else (self.transport,)

    @property
    def wire(self) -> bool:
        """Whether an output shows wire rates."""
        return self.wide or any((self.output_file, self.json_lines, self.plot))

    @property
    def detail(self) -> bool:
        """Whether to take the time before each call, which runs Python between the calls."""
        return self.names or self.wide or self.json_lines is not None or self.settings.per_iter_timing
