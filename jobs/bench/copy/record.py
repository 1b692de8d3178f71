"""The record of -J: JSON, version 1."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from meshrun.jobs.bench.copy.buffers import MatrixGpu
from meshrun.jobs.bench.copy.cases import CASES, CopyTransfer
from meshrun.jobs.bench.copy.measure import CaseResult, CopySettings
from meshrun.jobs.bench.copy.outliers import Peaks, best_of_peak, find_outliers, messages
from meshrun.jobs.measure.record_file import Json

VERSION = 1


@dataclass
class HostResults:
    """Results of one host. peaks: of each of its GPUs."""

    name: str
    ranks: int
    gpus: tuple[MatrixGpu, ...]
    peaks: tuple[Peaks, ...]
    results: list[CaseResult] = field(default_factory=list)


def record(
    hosts: Sequence[HostResults], settings: CopySettings, words: Sequence[str], environment: Sequence[str]
) -> str:
    """Return the file's text. words: of the command line. environment: NAME=value."""
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
                "huge_pages": settings.huge_pages,
                "pairs": settings.pairs,
                "hosts": [_host(host) for host in hosts],
            },
            indent=1,
            allow_nan=False,
        )
        + "\n"
    )


def _host(host: HostResults) -> Json:
    return {
        "name": host.name,
        "ranks": host.ranks,
        "gpus": [
            {
                "number": number,
                "rank_of_host": one.rank,
                "name": one.gpu.name,
                "uuid": one.gpu.uuid,
                "bus_id": one.gpu.bus_id,
            }
            for number, one in enumerate(host.gpus)
        ],
        "testcases": [_case(result, host.peaks) for result in host.results],
    }


def _case(result: CaseResult, peaks: Sequence[Peaks]) -> Json:
    case = result.case
    return {
        "name": case.name,
        "index": CASES.index(case) if case in CASES else None,
        "status": "Waived" if result.waived else "Error" if result.wrong else "Passed",
        "waived": result.waived or None,
        "unit": case.unit,
        "path": case.path,
        "engine": case.engine,
        "matrices": [_matrix(result, number, peaks) for number in range(len(case.matrices))],
        "cells": [
            {
                "row": cell.row,
                "column": cell.column,
                "transfers": [_transfer(one) for one in cell.transfers],
                "samples": [list(values) for values in cell.samples],
                "not_measured": cell.why or None,
            }
            for cell in result.cells
        ],
        "mismatches": list(result.wrong),
    }


def _matrix(result: CaseResult, number: int, peaks: Sequence[Peaks]) -> Json:
    key, title = result.case.matrices[number]
    return {
        "key": key,
        "title": title,
        "values": result.matrix(number),
        "variation": result.variations(number),
        "outliers": [[one.cell.row, one.cell.column] for one in find_outliers(result, number)],
        "messages": messages(result, number),
        "peak": (best_of_peak(result, number, peaks) or None) if peaks else None,
    }


def _transfer(transfer: CopyTransfer) -> Json:
    return {
        "source": str(transfer.source),
        "target": str(transfer.target),
        "moved_by": None
        if transfer.source == transfer.target and transfer.source.kind == "host"
        else transfer.gpu,
        "factor": transfer.factor,
    }
