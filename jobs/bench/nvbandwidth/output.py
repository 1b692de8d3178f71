"""The text and the JSON of nvbandwidth 0.10, as its readers parse them.

The version and the layout are nvbandwidth's; the Git version names meshrun, whose figures these are.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from meshrun.jobs.bench.copy import nvbandwidth_text
from meshrun.jobs.bench.copy.cases import CASES
from meshrun.jobs.bench.copy.measure import CaseResult
from meshrun.jobs.bench.copy.record import HostResults
from meshrun.jobs.measure.record_file import Json

VERSION = "v0.10.0"
DEFAULT_SIZE = 512 << 20  # bytes


def origin() -> str:
    """Return what made the figures, in place of the commit that nvbandwidth was built from."""
    return f"meshrun {version('meshrun')}"


def listing() -> str:
    """List index, name and description of every case, as -l does."""
    cases = [f"{number}, {case.name}:\n\t{case.about}\n" for number, case in enumerate(CASES)]
    return "\n".join(["Index, Name:\n\tDescription", "=" * 23, "\n".join(cases)]) + "\n"


def not_found(name: str) -> str:
    """Return nvbandwidth's words for a test case that does not exist."""
    return f"Testcase index {name} out of bound!" if name.isdecimal() else f"Testcase {name} not found!"


def note(asked: int, used: int) -> str:
    """Return a sentence about buffers that are smaller than usual or than asked for; "" if none is."""
    if used < asked:
        return f"NOTE: Buffers of {asked >> 20} MiB do not fit in memory; their size is {used:,} bytes."
    if asked < DEFAULT_SIZE:
        return (
            f"NOTE: Buffers of {asked >> 20} MiB are smaller than the default of {DEFAULT_SIZE >> 20} MiB, "
            "and may not reach the peak bandwidth."
        )
    return ""


def head(host: HostResults, versions: dict[str, str], sentence: str) -> str:
    """Format everything before the first test case. versions: of cuda_runtime, cuda_driver and driver."""
    lines = [
        f"nvbandwidth Version: {VERSION}",
        f"Built from Git version: {origin()}",
        "",
        *([sentence] if sentence else []),
        f"CUDA Runtime Version: {versions.get('cuda_runtime', '0')}",
        f"CUDA Driver Version: {versions.get('cuda_driver', '0')}",
        f"Driver Version: {versions.get('driver') or 'unknown'}",
        "",
    ]
    return "\n".join(lines) + "\n" + nvbandwidth_text.devices(host.name, host.gpus)


def text(result: CaseResult, verbose: bool, perf: bool) -> str:
    """Format a test case. verbose: of -v. perf: of --perfFormatter."""
    if result.waived:
        return f"Waived: {result.case.name}: {result.waived}\n"
    lines = [f"Running {result.case.name}."]
    for number, (key, title) in enumerate(result.case.matrices):
        lines += [title, *nvbandwidth_text.matrix(result, number, marked=False), ""]
        figures = statistics_of(result, number)
        unit = " -ns" if result.case.unit == "ns" else " +GB/s"
        lines.append(
            f"&&&& PERF {key} {figures['sum']:.2f}{unit}" if perf else f"SUM {key} {figures['sum']:.2f}"
        )
        if verbose:
            names = {"MIN": "min", "MAX": "max", "AVG": "average"}
            lines += [f"{word} {key} {figures[name]:.2f}" for word, name in names.items() if name in figures]
        lines.append("")
        if number == len(result.case.matrices) - 1 and not perf:
            varies = [value for row in result.variations(number) for value in row if value is not None]
            if varies:
                lines.insert(len(lines) - 1, f"COEFFICIENT_OF_VARIATION {key} {statistics.fmean(varies):.2f}")
    lines += [f"Error: {sentence}" for sentence in result.wrong]
    return "\n".join(lines) + "\n"


def statistics_of(result: CaseResult, number: int) -> dict[str, float]:
    """Return sum, minimum, maximum and average of the measured cells of a matrix; only a sum if none is."""
    values = [value for row in result.matrix(number) for value in row if value is not None]
    if not values:
        return {"sum": 0.0}
    total = sum(values)
    return {"sum": total, "min": min(values), "max": max(values), "average": total / len(values)}


def document(
    host: HostResults,
    unknown: Sequence[tuple[int, str]],
    versions: dict[str, str],
    sentence: str,
    verbose: bool,
) -> str:
    """Return the JSON of a run. unknown: names that are no cases, and how many results precede each."""
    cases: list[Json] = []
    for number, result in enumerate(host.results):
        cases += [_missing(name) for place, name in unknown if place == number]
        cases.append(_case(result, verbose))
    cases += [_missing(name) for place, name in unknown if place >= len(host.results)]
    devices = [
        f"{number}: {one.gpu.name} ({nvbandwidth_text.bus(one.gpu.bus_id)}): ({host.name})"
        for number, one in enumerate(host.gpus)
    ]
    content: dict[str, Any] = {
        "CUDA Runtime Version": int(versions.get("cuda_runtime", "0")),
        "Driver Version": versions.get("driver") or "unknown",
        "GPU Device list": devices,
        "git_version": origin(),
        "testcases": cases,
        "version": VERSION,
        **({"warning": sentence} if sentence else {}),
    }
    return json.dumps({"nvbandwidth": content}, indent="\t", separators=(",", " : "), allow_nan=False) + "\n"


def _missing(name: str) -> Json:
    return {"name": name, "status": "ERROR"}


def _case(result: CaseResult, verbose: bool) -> Json:
    """The matrices of a case, row after row; sum and description are of the last one, as in nvbandwidth."""
    case: Json = {"name": result.case.name, "status": "Waived" if result.waived else "Passed"}
    if result.waived:
        return {**case, "reason": result.waived}
    rows = [
        ["N/A" if value is None else f"{value:g}" for value in row]
        for number in range(len(result.case.matrices))
        for row in result.matrix(number)
    ]
    figures = statistics_of(result, len(result.case.matrices) - 1)
    case |= {"bandwidth_description": result.case.matrices[-1][1], "bandwidth_matrix": rows}
    case |= {name: value for name, value in figures.items() if verbose or name == "sum"}
    if result.wrong:
        case |= {"status": "Error", "error": "; ".join(result.wrong)}
    return case
