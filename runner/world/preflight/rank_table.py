"""All ranks' facts as text: first the common ones, then a line for each rank, then the hosts."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrun.runner.report.table import table
from meshrun.runner.report.units import counted, size_name
from meshrun.runner.world.preflight.problem import (
    abbreviate,
    by_host,
    describe_groups,
    describe_hosts,
    group_by_value,
    rank_numbers,
)
from meshrun.runner.world.preflight.survey import GpuFacts, Interface, Survey
from meshrun.runner.world.watchdog.report import ranges

WIDTH = 110
LINES = 32  # with more ranks than this, only one of several identical hosts is shown
NONE, UNKNOWN = "none", "unknown"

COLUMNS = ("host", "rank", "local", "bus id", "UUID", "NVLink", "PCIe", "visible", "cores", "NUMA")
LEFT = [at for at, name in enumerate(COLUMNS) if name not in ("rank", "local")]
ELASTIC = [COLUMNS.index(name) for name in ("host", "visible", "cores", "NUMA")]
OWN = (0, 1, 4)  # host, rank and UUID always differ between hosts


def rows(surveys: Sequence[Survey]) -> list[dict[str, Any]]:
    """One dict of plain values for each rank, with all its facts."""
    return [dataclasses.asdict(survey) for survey in surveys]


def render(surveys: Sequence[Survey]) -> str:
    """Text of at most 110 columns; surveys: of every rank."""
    return "\n".join([*_alike(surveys), "", *_ranks(surveys), "", *_hosts(surveys)]) + "\n"


# Facts that are usually the same everywhere; otherwise the ranks with each value.

ALIKE: tuple[tuple[str, Callable[[Survey], str]], ...] = (
    ("meshrun", lambda survey: survey.meshrun or UNKNOWN),
    ("Python", lambda survey: survey.python),
    ("MPI", lambda survey: survey.mpi or NONE),
    ("GPU", lambda survey: survey.gpu.name if survey.gpu else NONE),
    ("driver", lambda survey: _driver(survey.gpu) if survey.gpu else NONE),
    ("CUDA", lambda survey: (survey.gpu.cuda or UNKNOWN) if survey.gpu else NONE),
    ("NCCL", lambda survey: f"{survey.nccl[0]} ({survey.nccl[1]})" if survey.nccl else NONE),
)


def _alike(surveys: Sequence[Survey]) -> list[str]:
    hosts = len(by_host(surveys))
    lines = [f"{counted(len(surveys), 'rank')} on {counted(hosts, 'host')}"]
    for name, value in ALIKE:
        lines += _line(name, _one_or_all((value(survey), survey) for survey in surveys))
    settings = [
        f"{name}={_one_or_all((survey.settings.get(name, '(not set)'), survey) for survey in surveys)}"
        for name in sorted({name for survey in surveys for name in survey.settings})
    ]
    return lines + _line("settings", ", ".join(settings) or NONE)


def _driver(gpu: GpuFacts) -> str:
    return (gpu.driver or UNKNOWN) + (f" (runs CUDA up to {gpu.cuda_driver})" if gpu.cuda_driver else "")


def _one_or_all(values: Iterable[tuple[str, Survey]]) -> str:
    found = group_by_value(values)
    return describe_groups(found) if len(found) > 1 else next(iter(found))


# A line for each rank.


def _ranks(surveys: Sequence[Survey]) -> list[str]:
    """A line for each rank; of many identical hosts, the ranks of one and a line that names the others."""
    collapse = len(surveys) > LINES
    shown: dict[object, list[list[Survey]]] = {}
    for number, host in enumerate(by_host(surveys)):
        cells = [_cells(survey) for survey in host]
        own = [[cell for at, cell in enumerate(row) if at not in OWN] for row in cells]
        shown.setdefault(str(own) if collapse else number, []).append(host)
    firsts = [_cells(survey) for alike in shown.values() for survey in alike[0]]
    heads, *rows = table(COLUMNS, firsts, left=LEFT, elastic=ELASTIC, width=WIDTH, indent=0)
    lines = [heads]
    for alike in shown.values():
        lines += rows[: len(alike[0])]
        rows = rows[len(alike[0]) :]
        if len(alike) > 1:
            others = [survey for host in alike[1:] for survey in host]
            lines += _wrapped(f"  alike: {describe_hosts(others)}, ranks {ranges(rank_numbers(others))}")
    return lines


def _cells(survey: Survey) -> tuple[str, ...]:
    gpu = survey.gpu
    visible = "not set" if survey.visible is None else survey.visible or "empty"
    cores = f"{ranges(survey.cpus)} (one core)" if survey.one_core else ranges(survey.cpus)
    return (
        survey.host,
        str(survey.rank),
        str(survey.local_rank),
        gpu.bus_id if gpu else NONE,
        gpu.uuid[:12] if gpu else NONE,
        _nvlinks(gpu) if gpu else NONE,
        _pcie(gpu) if gpu else NONE,
        visible,
        cores,
        _numa(survey),
    )


def _nvlinks(gpu: GpuFacts) -> str:
    return UNKNOWN if gpu.nvlinks is None else f"{gpu.nvlinks_up}/{gpu.nvlinks}" if gpu.nvlinks else NONE


def _pcie(gpu: GpuFacts) -> str:
    """Current generation and width, and the highest supported if that is more."""
    if gpu.pcie_generation is None or gpu.pcie_width is None:
        return UNKNOWN
    now = f"{gpu.pcie_generation} x{gpu.pcie_width}"
    most = f"{gpu.pcie_generation_max or gpu.pcie_generation} x{gpu.pcie_width_max or gpu.pcie_width}"
    return now if now == most else f"{now} of {most}"


def _numa(survey: Survey) -> str:
    """Nodes of the cores, and the GPU's node if it is another."""
    nodes = ranges(survey.numa) or UNKNOWN
    near = survey.gpu.numa_node if survey.gpu else None
    return nodes if near is None or near in survey.numa else f"{nodes}, GPU {near}"


# Hosts, identical ones together.


def _hosts(surveys: Sequence[Survey]) -> list[str]:
    alike: dict[str, list[list[Survey]]] = {}
    for host in by_host(surveys):
        alike.setdefault(_facts(host, addresses=False, free=False)[1], []).append(host)
    lines = []
    for hosts in alike.values():
        note = f"; addresses and free memory are those of {hosts[0][0].host}" if len(hosts) > 1 else ""
        lines += _wrapped(describe_hosts(host[0] for host in hosts) + note)
        lines += _facts(hosts[0], addresses=True, free=True)[0]
    return lines


def _facts(host: Sequence[Survey], *, addresses: bool, free: bool) -> tuple[list[str], str]:
    """Lines, and the same as a key for comparing hosts."""
    first = host[0]
    total, left = first.shm_total, min(survey.shm_free for survey in host)
    shm = (size_name(total) + (f", {size_name(left)} free" if free else "")) if total else NONE
    limits = [survey.memlock for survey in host if survey.memlock is not None]
    used = [one for one in first.interfaces if one.name != "lo" and (one.up or one.address)]
    idle = [one.name for one in first.interfaces if not (one.up or one.address)]
    interfaces = [_interface(one, addresses) for one in used]
    interfaces += [f"without address and down: {abbreviate(idle)}"] if idle else []
    lines = [
        *_line("  /dev/shm", shm),
        *_line("  memlock", size_name(min(limits)) if limits else "unlimited"),
        *_line("  network", ", ".join(interfaces) or NONE),
        *_line("  RDMA", _ports(first)),
    ]
    return lines, "\n".join(lines)


def _interface(one: Interface, address: bool) -> str:
    speed = "" if one.mbit is None else f"{one.mbit / 1000:g} Gb/s"
    words = (one.name, one.address if address else "", "up" if one.up else "down", speed)
    return " ".join(word for word in words if word)


def _ports(first: Survey) -> str:
    kinds: dict[str, list[str]] = {}
    for port in first.ports:
        rate = UNKNOWN if port.rate_gbit is None else f"{port.rate_gbit:g} Gb/s"
        kinds.setdefault(f"{port.link_layer} {port.state} {rate}", []).append(f"{port.device}:{port.port}")
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items()) or NONE


# Lines.


def _line(name: str, text: str) -> list[str]:
    return _wrapped(f"{name:10}  {text}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)
