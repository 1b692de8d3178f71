"""The cases asked for, measured by every host's ranks at the same time, shown and recorded by rank 0."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import runner
from jobs.bench.copy import fitting, host, nvbandwidth_text, outliers
from jobs.bench.copy.buffers import Lender, Seat, seats_of
from jobs.bench.copy.cases import CASES, HOST, Case, chosen
from jobs.bench.copy.measure import Settings, measure
from jobs.bench.copy.record import Host, record
from jobs.bench.copy.transfers import Mover
from jobs.measure.exit_codes import NeedsGpu, WrongResults
from jobs.measure.record_file import create_outputs, recorded_environment
from jobs.measure.status_line import CLEAR
from runner import Box, Control, World

TOLD = 4  # sentences about wrong data in the last word; all are in the text above it


@dataclass(frozen=True)
class Asked:
    """The command's words."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    size: int = 512 << 20
    copies: int = 16
    samples: int = 3
    mean: bool = False
    check: bool = True
    output_file: str | None = None
    plot: str | None = None

    @property
    def settings(self) -> Settings:
        return Settings(self.size, self.copies, self.samples, self.mean, self.check)


def run(world: World, ending: runner.Ending, asked: Asked, door: Any) -> dict[str, Any]:
    """Measure; the completion record. Raises WrongResults and NeedsGpu, after all is shown."""
    asked = world.control.broadcast(asked)
    cases = _cases(asked, on_gpu=world.here.device.kind == "cuda")
    path = world.once(lambda: create_outputs(asked.output_file, asked.plot))
    identities = list(dict.fromkeys(rank.host_id for rank in world.ranks))
    group = world.control.split(identities.index(world.here.host_id))
    with ExitStack() as stack:
        box: Box | None = None
        if any(case.needs_gpu for case in cases):
            box = runner.open_box()
            stack.callback(box.close)
        hosts, settings = measure_all(world, group, box, cases, asked.settings, door)
    if world.rank == 0:
        if path is not None:
            text = record(hosts, settings, door.words, recorded_environment(runner.environment()))
            runner.write_file(Path(path), text)
        if asked.plot:
            from jobs.bench.copy.heatmap import draw

            draw([(one.name, result) for one in hosts for result in one.results], asked.plot)
    _raise_if_wrong(hosts)
    return {"command": "bench copy", "cases": [case.name for case in cases], "ranks": world.size}


def measure_all(
    world: World, group: Control, box: Box | None, cases: Sequence[Case], settings: Settings, door: Any
) -> tuple[list[Host], Settings]:
    """Every case on every host; the same on all ranks. The settings have the size that memory allowed.

    group: this host's ranks. box: None where no case needs a GPU.
    """
    seats = seats_of(group, box, world.here.device.index) if box is not None else ()
    limits = _limits(group, seats)
    name = f"{world.here.host}" if group.rank == 0 else None
    told = world.control.allgather((name, group.size, seats, limits))
    hosts = [Host(*one) for one in told if one[0] is not None]
    size = _fitting(world, group, box, seats, cases, settings)
    speaks = _Speaker(world, door)
    speaks.begin(hosts, settings, replace(settings, size=size))
    settings = replace(settings, size=size)
    lender = Lender(group, box, seats) if box is not None else None
    mover = Mover(lender, world.backend.synchronize) if lender is not None else None
    for number, case in enumerate(cases):
        speaks.doing = f"{case.name} ({number + 1} of {len(cases)})"
        if mover is not None and case.needs_gpu:
            mine = measure(case, mover, settings, speaks.progress)
        else:
            mine = host.measure(group, settings, speaks.progress)
        results = world.control.allgather(mine if group.rank == 0 else None)
        for one, result in zip(hosts, [result for result in results if result is not None], strict=True):
            one.results.append(result)
        speaks.show(hosts)
    if lender is not None:
        lender.close()
    speaks.end(hosts)
    return hosts, settings


class _Speaker:
    """What rank 0 prints; nothing on the others."""

    def __init__(self, world: World, door: Any) -> None:
        self.speaks, self.colour, self.columns = world.rank == 0, door.colour, door.columns
        self.doing = ""

    def begin(self, hosts: Sequence[Host], asked: Settings, settings: Settings) -> None:
        statistic = "mean" if settings.mean else "median"
        lines = [
            f"# {settings.size:,} bytes a buffer, {settings.copies} copies a sample, {statistic} of "
            f"{settings.samples} samples, data {'checked' if settings.check else 'not checked'}"
        ]
        if settings.size < asked.size:
            lines.append(f"# Reduced from {asked.size:,} bytes, which memory does not hold")
        for one in hosts:
            how = "one process" if one.ranks == 1 else f"{one.ranks} processes"
            lines.append(
                f"# {one.name}: {how}\n{nvbandwidth_text.devices(one.name, one.seats) if one.seats else ''}"
            )
        self._write("\n".join(lines) + "\n")

    def progress(self, where: str) -> None:
        if self.speaks and self.columns:
            sys.stderr.write(f"{CLEAR}{f'{self.doing}: {where}'[: self.columns - 1]}")
            sys.stderr.flush()

    def show(self, hosts: Sequence[Host]) -> None:
        for one in hosts:
            text = nvbandwidth_text.text(one.results[-1], one.limits, self.colour)
            self._write(f"# {one.name}\n{text}" if text and len(hosts) > 1 else text)

    def end(self, hosts: Sequence[Host]) -> None:
        for one in hosts:
            for result in one.results:
                if result.waived:
                    on = f" on {one.name}" if len(hosts) > 1 else ""
                    self._write(f"# {result.case.name}: waived{on}, {result.waived}\n")

    def _write(self, text: str) -> None:
        if self.speaks and text:
            if self.columns:
                sys.stderr.write(CLEAR)
                sys.stderr.flush()
            sys.stdout.write(text)
            sys.stdout.flush()


def _cases(asked: Asked, on_gpu: bool) -> tuple[Case, ...]:
    cases = chosen(asked.names, asked.prefixes) if asked.names or asked.prefixes else ()
    if on_gpu:
        return cases or CASES
    refused = [case.name for case in cases if case.needs_gpu]
    if refused:
        raise NeedsGpu(
            f"{refused[0]}{f' (and {len(refused) - 1} more)' if refused[1:] else ''} needs a GPU, "
            "and this is a CPU",
            hint=f"-t {HOST.name}, or meshrun doctor for which GPUs there are",
            everywhere=True,
        )
    return cases or (HOST,)


def _limits(group: Control, seats: Sequence[Seat]) -> tuple[outliers.Limits, ...]:
    mine = {
        number: outliers.limits_of(seat.gpu) for number, seat in enumerate(seats) if seat.rank == group.rank
    }
    whole = {number: limit for some in group.allgather(mine) for number, limit in some.items()}
    return tuple(whole[number] for number in range(len(seats)))


def _fitting(
    world: World,
    group: Control,
    box: Box | None,
    seats: Sequence[Seat],
    cases: Sequence[Case],
    asked: Settings,
) -> int:
    """The size that all GPUs and hosts of the run have memory for."""
    on_gpus = [case for case in cases if case.needs_gpu]
    needed = fitting.needs(on_gpus, len(seats))
    limits = []
    if box is not None:
        for number, seat in enumerate(seats):
            if seat.rank == group.rank:
                count = sum(
                    many for place, many in needed.items() if (place.kind, place.gpu) == ("gpu", number)
                )
                limits.append((count, fitting.SHARE["gpu"] * box.free_memory(seat.gpu.index)))
    pinned = sum(many for place, many in needed.items() if place.kind == "host")
    own = 2 * group.size if any(not case.needs_gpu for case in cases) else 0
    limits.append((pinned + own, fitting.SHARE["host"] * runner.free_host_memory()))
    return fitting.within(asked.size, [one for some in world.control.allgather(limits) for one in some])


def _raise_if_wrong(hosts: Sequence[Host]) -> None:
    results = [result for one in hosts for result in one.results]
    wrong = [sentence for result in results for sentence in result.wrong]
    if wrong:
        more = f"; and {len(wrong) - TOLD} more" if len(wrong) > TOLD else ""
        raise WrongResults("wrong data: " + "; ".join(wrong[:TOLD]) + more, everywhere=True)
    if all(result.waived for result in results):
        first = results[0]
        raise NeedsGpu(f"nothing could be measured: {first.case.name}: {first.waived}", everywhere=True)
