"""The JSON of -J, version 1."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from jobs.bench.copy import outliers
from jobs.bench.copy.buffers import Seat
from jobs.bench.copy.cases import CASES
from jobs.bench.copy.measure import Result, Settings
from jobs.bench.copy.outliers import Limits
from jobs.bench.copy.patterns import Flow

VERSION = 1
Json = dict[str, Any]


@dataclass
class Host:
    """What was measured on one host. limits: of each of its GPUs."""

    name: str
    ranks: int
    seats: tuple[Seat, ...]
    limits: tuple[Limits, ...]
    results: list[Result] = field(default_factory=list)


def record(
    hosts: Sequence[Host], settings: Settings, words: Sequence[str], environment: Sequence[str]
) -> str:
    """The file's text. words: the command's. environment: NAME=value."""
    return (
        json.dumps(
            {
                "version": VERSION,
                "meshrun": version("meshrun"),
                "args": list(words),
                "environment": list(environment),
                "buffer_bytes": settings.size,
                "copies": settings.copies,
                "samples": settings.samples,
                "statistic": "mean" if settings.mean else "median",
                "checked": settings.check,
                "hosts": [_host(host) for host in hosts],
            },
            indent=1,
            allow_nan=False,
        )
        + "\n"
    )


def _host(host: Host) -> Json:
    return {
        "name": host.name,
        "ranks": host.ranks,
        "gpus": [
            {
                "number": number,
                "rank_of_host": seat.rank,
                "name": seat.gpu.name,
                "uuid": seat.gpu.uuid,
                "bus_id": seat.gpu.bus_id,
            }
            for number, seat in enumerate(host.seats)
        ],
        "testcases": [_case(result, host.limits) for result in host.results],
    }


def _case(result: Result, limits: Sequence[Limits]) -> Json:
    case = result.case
    return {
        "name": case.name,
        "index": CASES.index(case) if case in CASES else None,
        "status": "Waived" if result.waived else "Error" if result.wrong else "Passed",
        "waived": result.waived or None,
        "unit": case.unit,
        "path": case.path,
        "engine": case.engine,
        "matrices": [_matrix(result, number, limits) for number in range(len(case.matrices))],
        "cells": [
            {
                "row": cell.row,
                "column": cell.column,
                "flows": [_flow(flow) for flow in cell.flows],
                "samples": [list(values) for values in cell.samples],
                "not_measured": cell.why or None,
            }
            for cell in result.cells
        ],
        "wrong": list(result.wrong),
    }


def _matrix(result: Result, number: int, limits: Sequence[Limits]) -> Json:
    key, title = result.case.matrices[number]
    return {
        "key": key,
        "title": title,
        "values": result.matrix(number),
        "odd": [[one.cell.row, one.cell.column] for one in outliers.odd(result, number)],
        "said": outliers.sentences(result, number),
        "peak": (outliers.nearest(result, number, limits) or None) if limits else None,
    }


def _flow(flow: Flow) -> Json:
    return {
        "source": str(flow.source),
        "target": str(flow.target),
        "moved_by": None if flow.source == flow.target and flow.source.kind == "host" else flow.gpu,
        "factor": flow.factor,
    }
