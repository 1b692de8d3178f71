"""Measure the chosen cases on every host at the same time; rank 0 prints and records the results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from meshrun import World
from meshrun.jobs.bench.copy import host, nvbandwidth_text
from meshrun.jobs.bench.copy.buffers import (
    LARGEST_SHARE,
    MatrixGpu,
    TransferBuffers,
    buffers_needed,
    fitting_size,
    gpus_of,
)
from meshrun.jobs.bench.copy.cases import CASES, HOST, Case, chosen
from meshrun.jobs.bench.copy.measure import CopySettings, measure
from meshrun.jobs.bench.copy.outliers import Peaks, peaks_of
from meshrun.jobs.bench.copy.record import HostResults, record
from meshrun.jobs.bench.copy.transfers import TransferRunner
from meshrun.jobs.measure.exit_codes import NeedsGpu, WrongResults
from meshrun.jobs.measure.record_file import (
    create_outputs,
    print_table,
    recorded_environment,
    text_stream,
    write_record,
)
from meshrun.jobs.measure.status_line import StatusLine
from meshrun.runner.comm.api import Control
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.system.host_memory import free_host_memory
from meshrun.runner.system.launcher import environment
from meshrun.runner.world.failure import FailureHandler

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

MAX_NAMED = 4  # mismatches in the final error; all of them are in the text above it


@dataclass(frozen=True)
class CopyOptions(CopySettings):
    """The command's options. names, prefixes: of cases."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    output_file: str | None = None
    plot: str | None = None


def run(world: World, handler: FailureHandler, options: CopyOptions, cli_context: Any) -> dict[str, Any]:
    """Measure; returns the completion record. Raises WrongResults and NeedsGpu, after printing."""
    options = world.control.broadcast(options)
    cases = _cases(options, on_gpu=world.here.device.kind == "cuda")
    path = world.on_root(lambda: create_outputs(options.output_file, options.plot))
    identities = list(dict.fromkeys(rank.host_id for rank in world.ranks))
    group = world.control.split(identities.index(world.here.host_id))
    stream = text_stream(options.output_file)
    with ExitStack() as stack:
        box: Box | None = None
        if any(case.needs_gpu for case in cases):
            box = open_box()
            stack.callback(box.close)
        printer = CopyPrinter(world, cli_context, stream)
        hosts, settings = measure_all(world, group, box, cases, options, printer)
    if world.rank == 0:
        if path is not None:
            text = record(hosts, settings, cli_context.words, recorded_environment(environment()))
            write_record(path, text)
        if options.plot:
            from meshrun.jobs.bench.copy.heatmap import draw

            draw([(one.name, result) for one in hosts for result in one.results], options.plot)
    raise_if_wrong(hosts)
    _raise_if_nothing(hosts)
    return {"command": "bench copy", "cases": [case.name for case in cases], "ranks": world.size}


def measure_all(
    world: World,
    group: Control,
    box: Box | None,
    cases: Sequence[Case],
    settings: CopySettings,
    printer: CopyPrinter,
) -> tuple[list[HostResults], CopySettings]:
    """Measure every case on every host; the same on all ranks. The settings returned have the size that fits.

    group: this host's ranks. box: None if no case needs a GPU.
    """
    gpus = gpus_of(group, box, world.here.device.index) if box is not None else ()
    peaks = _peaks(group, gpus)
    name = f"{world.here.host}" if group.rank == 0 else None
    gathered = world.control.allgather((name, group.size, gpus, peaks))
    hosts = [HostResults(*one) for one in gathered if one[0] is not None]
    size = _size_that_fits(world, group, box, gpus, cases, settings)
    printer.begin(hosts, settings, replace(settings, size=size))
    settings = replace(settings, size=size)
    buffers = None
    if box is not None:
        buffers = TransferBuffers(group, box, gpus, huge_pages=settings.huge_pages, near=settings.near)
    transfer_runner = TransferRunner(buffers, world.backend.synchronize) if buffers is not None else None
    for number, case in enumerate(cases):
        printer.case = f"{case.name} ({number + 1} of {len(cases)})"
        if transfer_runner is not None and case.needs_gpu:
            mine = measure(case, transfer_runner, settings, printer.progress)
        else:
            mine = host.measure(group, settings, printer.progress)
        results = world.control.allgather(mine if group.rank == 0 else None)
        for one, result in zip(hosts, [result for result in results if result is not None], strict=True):
            one.results.append(result)
        printer.show(hosts)
    if buffers is not None:
        buffers.close()
    printer.end(hosts)
    return hosts, settings


class CopyPrinter:
    """Output of rank 0; nothing on the others. case: the current one."""

    def __init__(self, world: World, cli_context: Any, stream: TextIO) -> None:
        self.shows, self._stream = world.rank == 0, stream
        self.colour = cli_context.colour and stream is sys.stdout
        self._status = StatusLine(cli_context.columns if self.shows else None)
        self.case = ""

    def begin(self, hosts: Sequence[HostResults], wanted: CopySettings, settings: CopySettings) -> None:
        statistic = "mean" if settings.mean else "median"
        lines = [
            f"# {settings.size:,} bytes a buffer, {settings.copies} copies a sample, {statistic} of "
            f"{settings.samples} samples, data {'checked' if settings.check else 'not checked'}"
        ]
        if settings.huge_pages:
            lines.append("# Host memory in huge pages")
        if settings.pairs is not None:
            lines.append(f"# At most {settings.pairs} pairs of GPUs of each case, drawn with a fixed seed")
        if settings.size < wanted.size:
            lines.append(f"# Reduced from {wanted.size:,} bytes, which do not fit in memory")
        for one in hosts:
            how = "one process" if one.ranks == 1 else f"{one.ranks} processes"
            devices = nvbandwidth_text.devices(one.name, one.gpus) if one.gpus else ""
            lines.append(f"# {one.name}: {how}\n{devices}")
        self.write("\n".join(lines) + "\n")

    def progress(self, where: str) -> None:
        self._status.show(f"{self.case}: {where}")

    def show(self, hosts: Sequence[HostResults]) -> None:
        for one in hosts:
            text = nvbandwidth_text.text(one.results[-1], one.peaks, self.colour)
            self.write(f"# {one.name}\n{text}" if text and len(hosts) > 1 else text)

    def end(self, hosts: Sequence[HostResults]) -> None:
        for one in hosts:
            for result in one.results:
                if result.waived:
                    on = f" on {one.name}" if len(hosts) > 1 else ""
                    self.write(f"# {result.case.name}: waived{on}, {result.waived}\n")

    def write(self, text: str) -> None:
        if self.shows and text:
            self._status.clear()
            print_table(text, self._stream)


def _cases(options: CopyOptions, on_gpu: bool) -> tuple[Case, ...]:
    cases = chosen(options.names, options.prefixes) if options.names or options.prefixes else ()
    if on_gpu:
        return cases or CASES
    refused = [case.name for case in cases if case.needs_gpu]
    if refused:
        raise NeedsGpu(
            f"{refused[0]}{f' (and {len(refused) - 1} more)' if refused[1:] else ''} needs a GPU, "
            "and this is a CPU",
            hint=f"-t {HOST.name}; meshrun doctor lists the GPUs",
            everywhere=True,
        )
    return cases or (HOST,)


def _peaks(group: Control, gpus: Sequence[MatrixGpu]) -> tuple[Peaks, ...]:
    mine = {number: peaks_of(one.gpu) for number, one in enumerate(gpus) if one.rank == group.rank}
    whole = {number: peaks for some in group.allgather(mine) for number, peaks in some.items()}
    return tuple(whole[number] for number in range(len(gpus)))


def _size_that_fits(
    world: World,
    group: Control,
    box: Box | None,
    gpus: Sequence[MatrixGpu],
    cases: Sequence[Case],
    settings: CopySettings,
) -> int:
    """Return the buffer size that fits on all GPUs and hosts of the run."""
    on_gpus = [case for case in cases if case.needs_gpu]
    needed = buffers_needed(on_gpus, len(gpus))
    memories = []
    if box is not None:
        for number, one in enumerate(gpus):
            if one.rank == group.rank:
                count = sum(
                    many for place, many in needed.items() if (place.kind, place.gpu) == ("gpu", number)
                )
                memories.append((count, LARGEST_SHARE["gpu"] * box.free_memory(one.gpu.index)))
    pinned = sum(many for place, many in needed.items() if place.kind == "host")
    own = 2 * group.size if any(not case.needs_gpu for case in cases) else 0
    memories.append((pinned + own, LARGEST_SHARE["host"] * free_host_memory()))
    return fitting_size(settings.size, [one for some in world.control.allgather(memories) for one in some])


def raise_if_wrong(hosts: Sequence[HostResults]) -> None:
    """Raise WrongResults, on every rank, for copies that wrote wrong data."""
    wrong = [sentence for one in hosts for result in one.results for sentence in result.wrong]
    if wrong:
        more = f"; and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        raise WrongResults("wrong data: " + "; ".join(wrong[:MAX_NAMED]) + more, everywhere=True)


def _raise_if_nothing(hosts: Sequence[HostResults]) -> None:
    results = [result for one in hosts for result in one.results]
    if all(result.waived for result in results):
        first = results[0]
        raise NeedsGpu(f"nothing could be measured: {first.case.name}: {first.waived}", everywhere=True)
