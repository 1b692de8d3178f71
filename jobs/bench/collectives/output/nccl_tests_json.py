"""The JSON of -J: nccl-tests' version 3, key by key and type by type; and the same rows as JSON lines.

Additions to nccl-tests' keys are under one extra key, "meshrun", at the top and in each result. Its
conventions are kept because programs may depend on them: booleans are the strings "true" and "false", the
root is a string of width 6, NaN and infinity are strings. nccl-tests writes the whole environment, which
holds secrets; here a selection is written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.results import Footer, Header, Iterations, PlacementResult, ResultRow
from meshrun.jobs.measure.record_file import Json, recorded_environment
from meshrun.runner.report.record import plain

FILE_VERSION = 3
STAMP = "%Y-%m-%d %H:%M:%S"


def record(
    settings: SweepSettings,
    header: Header,
    rows: Sequence[ResultRow],
    footer: Footer,
    args: Sequence[str],
    environment: Mapping[str, str],
    started: float,
    ended: float,
) -> str:
    """Return the file's text. args: of the command line. started, ended: seconds since the epoch.

    environment: all variables; `recorded_environment` selects those to write.
    """
    average, least = footer.average_busbw, footer.minimum_busbw
    return _dump(
        {
            "version": FILE_VERSION,
            "start_time": _stamp(started),
            "args": list(args),
            "env": recorded_environment(environment),
            "nccl_version": header.library,
            "config": _config(settings, header),
            "results": [_result(settings, row) for row in rows],
            "out_of_bounds": {"count": footer.failures, "okay": _yes(footer.failures == 0)},
            "average_bus_bandwidth": {
                "bandwidth": average,
                "okay": "unchecked" if least is None else _yes(average >= 0.9 * least),
            },
            "errors": list(footer.errors),
            "end_time": _stamp(ended),
            "meshrun": _origin(header),
        }
    )


def combined(documents: Mapping[str, str]) -> str:
    """Join the documents of several operations: by name under "operations", a line each."""
    lines = ",\n".join(f"{json.dumps(name)}: {text.rstrip()}" for name, text in documents.items())
    return f'{{"operations": {{\n{lines}\n}}}}\n'


def json_line(settings: SweepSettings, header: Header, row: ResultRow) -> str:
    """Format one row as a self-contained line of JSON."""
    result = _result(settings, row)
    result["meshrun"] |= _origin(header)
    return _dump({"nccl_version": header.library, **result})


def _dump(value: Json) -> str:
    return json.dumps(plain(value), allow_nan=False) + "\n"


def _origin(header: Header) -> Json:
    return {
        "version": version("meshrun"),
        "program": header.program,
        "ranks": len(header.ranks),
        "backend": header.backend,
        "assumptions": header.assumptions,
    }


def _config(settings: SweepSettings, header: Header) -> Json:
    by_factor = settings.stepfactor > 1
    step = {"step_factor": settings.stepfactor} if by_factor else {"step_bytes": settings.stepbytes}
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": settings.minbytes,
        "maximum_bytes": settings.maxbytes,
        **step,
        "warmup_iters": settings.warmup_iters,
        "iterations": settings.iters,
        "aggregated_iterations": settings.agg_iters,
        "validation": settings.check,
        "graph": settings.cudagraph,
        "blocking_collectives": _yes(settings.blocking > 0),
        "per_iter_timing": _yes(settings.per_iter_timing),
        "per_iter_skip": settings.per_iter_skip,
        "parallel_init": _yes(False),
        "devices": [
            {
                "rank": one.rank,
                "group": one.group,
                "pid": one.pid,
                "hostname": one.host,
                "device": one.device,
                "device_hex": one.bus_id,
                "device_info": one.name,
            }
            for one in header.ranks
        ],
    }


def _result(settings: SweepSettings, row: ResultRow) -> Json:
    result: Json = {
        "size": row.size,
        "count": row.count,
        "type": row.datatype,
        "redop": row.reduction,
        "root": f"{row.root:6d}",
    }
    placements = {"out_of_place": row.out_of_place, "in_place": row.in_place}
    for name, measured in placements.items():
        seconds = measured.cpu_seconds if settings.report_cputime else measured.seconds
        result[name] = {
            "cpu_time" if settings.report_cputime else "time": seconds * 1e6,
            "alg_bw": measured.algbw,
            "bus_bw": measured.busbw,
            "nwrong": measured.wrong,
        }
        if measured.iterations is not None:
            result[f"{name}_per_iter"] = _iterations(measured.iterations)
    result |= {"actual_iterations": settings.iters, "experiment_name": ""}
    result["meshrun"] = {name: _more(measured) for name, measured in placements.items()}
    return result


def _iterations(iterations: Iterations) -> Json:
    of = asdict(iterations.summary())
    result: Json = {"skipped_iterations": iterations.skipped}
    result |= {f"{name}_us": of[name] * 1e6 for name in ("min", "max", "avg", "p50", "p95", "p99", "stdev")}
    result |= {"cv_pct": of["cv"], "times_us": _microseconds(iterations.slowest)}
    if len(iterations.by_rank) > 1:
        result["per_process_max_times_us"] = [_microseconds(times) for times in iterations.by_rank]
    return result


def _more(measured: PlacementResult) -> Json:
    """Return the additions to nccl-tests' results; times in seconds."""
    asked: Json = {}  # keys of options that add some
    if measured.choices is not None:
        asked["choices"] = [asdict(choice) for choice in measured.choices]
    if measured.traffic is not None:
        asked["traffic"] = [asdict(wire) for wire in measured.traffic]
    return {
        "seconds_by_rank": measured.by_rank,
        "arrival_skew": measured.arrival_skew,
        "wire": measured.wire,
        "wire_percent": measured.wire_percent,
        "groups": [asdict(group) for group in measured.groups],
        "findings": [asdict(finding) for finding in measured.findings],
        **asked,
    }


def _microseconds(times: Sequence[float]) -> list[float]:
    return [seconds * 1e6 for seconds in times]


def _stamp(seconds: float) -> str:
    return time.strftime(STAMP, time.localtime(seconds))


def _yes(value: bool) -> str:
    return "true" if value else "false"
