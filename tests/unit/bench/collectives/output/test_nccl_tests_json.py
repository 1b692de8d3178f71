"""The JSON of -J."""

from __future__ import annotations

import json
import time

import pytest

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.output.nccl_tests_json import json_line, record
from meshrun.jobs.bench.collectives.results import (
    Footer,
    Header,
    Iterations,
    PlacementResult,
    RankDevice,
    RankMismatch,
    ResultRow,
    SplitGroup,
)
from meshrun.jobs.measure.record_file import recorded_environment

HEADER = Header(
    "all_reduce_perf",
    22809,
    "MPI, host memory",
    (RankDevice(0, 1, 71, "c7", 3, "0000:1b:00", "H200"),),
    ("ring",),
)
TIMES = Iterations((30e-6, 34e-6), ((30e-6, 20e-6), (25e-6, 34e-6)), skipped=1)
ROW = ResultRow(
    8,
    2,
    "float",
    "sum",
    -1,
    PlacementResult(12.5e-6, 1.5e-6, 1.25, float("nan"), 0, iterations=TIMES),
    PlacementResult(
        10e-6,
        2e-6,
        1.5,
        float("inf"),
        None,
        by_rank=(9e-6, 11e-6),
        findings=(RankMismatch(0, "c7", "GPU 3", 1, 2, "1", "2", None, 2),),
        groups=(SplitGroup(1, (0,), 10e-6, 1.5, 2.5, 1),),
        wire=3.5,
        arrival_skew=(0.0, 2e-6),
    ),
)


def whole(settings: SweepSettings | None = None, footer: Footer | None = None) -> dict:
    text = record(
        settings or SweepSettings(),
        HEADER,
        [ROW],
        footer or Footer(0, 2.5),
        ["meshrun", "bench", "all_reduce"],
        {"NCCL_ALGO": "Ring", "HOME": "/home/me"},
        1750000000.0,
        1750000060.0,
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_top_has_nccl_tests_keys_in_its_order() -> None:
    found = whole()
    assert list(found) == [
        *("version", "start_time", "args", "env", "nccl_version", "config", "results", "out_of_bounds"),
        *("average_bus_bandwidth", "errors", "end_time", "meshrun"),
    ]
    assert found["version"] == 3
    assert found["args"] == ["meshrun", "bench", "all_reduce"]
    assert found["env"] == ["NCCL_ALGO=Ring"]
    assert found["nccl_version"] == 22809
    start, end = (time.strptime(found[key], "%Y-%m-%d %H:%M:%S") for key in ("start_time", "end_time"))
    assert time.mktime(end) - time.mktime(start) == 60
    assert found["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert found["average_bus_bandwidth"] == {"bandwidth": 2.5, "okay": "unchecked"}
    assert found["errors"] == []
    assert found["meshrun"]["backend"] == "MPI, host memory"
    assert found["meshrun"]["assumptions"] == ["ring"]


def test_config_by_bytes_and_by_factor() -> None:
    found = whole(SweepSettings(blocking=3, per_iter_timing=True, per_iter_skip=1))["config"]
    assert found == {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": 33554432,
        "maximum_bytes": 33554432,
        "step_bytes": 1048576,
        "warmup_iters": 1,
        "iterations": 20,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": "true",
        "per_iter_timing": "true",
        "per_iter_skip": 1,
        "parallel_init": "false",
        "devices": [
            {
                "rank": 0,
                "group": 1,
                "pid": 71,
                "hostname": "c7",
                "device": 3,
                "device_hex": "0000:1b:00",
                "device_info": "H200",
            }
        ],
    }
    by_factor = whole(SweepSettings(stepfactor=2))["config"]
    assert by_factor["step_factor"] == 2
    assert "step_bytes" not in by_factor


def test_a_result_has_nccl_tests_types() -> None:
    (found,) = whole()["results"]
    assert list(found) == [
        *("size", "count", "type", "redop", "root", "out_of_place", "out_of_place_per_iter", "in_place"),
        *("actual_iterations", "experiment_name", "meshrun"),
    ]
    assert found["root"] == "    -1"
    assert found["out_of_place"] == {"time": 12.5, "alg_bw": 1.25, "bus_bw": "nan", "nwrong": 0}
    assert found["in_place"]["nwrong"] is None
    assert found["in_place"]["bus_bw"] == "inf"
    assert (found["actual_iterations"], found["experiment_name"]) == (20, "")


def test_cpu_time_has_a_key_of_its_own() -> None:
    (found,) = whole(SweepSettings(report_cputime=True))["results"]
    assert found["out_of_place"]["cpu_time"] == pytest.approx(1.5)
    assert "time" not in found["out_of_place"]


def test_iterations() -> None:
    found = whole()["results"][0]["out_of_place_per_iter"]
    assert list(found) == [
        *("skipped_iterations", "min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "stdev_us"),
        *("cv_pct", "times_us", "per_process_max_times_us"),
    ]
    assert found["skipped_iterations"] == 1
    assert found["min_us"] == pytest.approx(34)  # the first is skipped in the summary, and listed
    assert found["times_us"] == pytest.approx([30, 34])
    assert found["per_process_max_times_us"][1] == pytest.approx([25, 34])


def test_what_nccl_tests_does_not_have_is_under_one_key() -> None:
    found = whole()["results"][0]["meshrun"]["in_place"]
    assert found["seconds_by_rank"] == [9e-6, 11e-6]
    assert (found["wire"], found["wire_percent"]) == (3.5, None)
    assert found["groups"][0]["ranks"] == [0]
    assert found["findings"][0]["host"] == "c7"
    assert found["arrival_skew"] == [0.0, 2e-6]


@pytest.mark.parametrize(("minimum", "okay"), [(2.7, "true"), (2.8, "false")])
def test_a_least_average_is_judged_with_ten_percent_of_grace(minimum: float, okay: str) -> None:
    found = whole(footer=Footer(3, 2.5, minimum_busbw=minimum, errors=("lost",)))
    assert found["average_bus_bandwidth"]["okay"] == okay
    assert found["out_of_bounds"] == {"count": 3, "okay": "false"}
    assert found["errors"] == ["lost"]


def test_a_line_stands_alone() -> None:
    text = json_line(SweepSettings(), HEADER, ROW)
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    found = json.loads(text)
    assert (found["size"], found["nccl_version"]) == (8, 22809)
    assert found["meshrun"]["program"] == "all_reduce_perf"
    assert found["meshrun"]["in_place"]["wire"] == 3.5


def test_the_environment_is_reduced_to_what_is_known_to_be_harmless() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "UCX_TLS": "tcp",
        "FI_PROVIDER": "efa",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JWT": "hidden",
        "SLURM_JOB_ACCOUNT": "hidden",
        "PATH": "hidden",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "XNCCL_DEBUG": "hidden",
        "FILE": "hidden",
        **{f"NCCL_{word}_X": "hidden" for word in ("KEY", "TOKEN", "SECRET", "PASSWORD", "PSK")},
        "UCX_credential": "hidden",
        "FI_Api_Key": "hidden",
    }
    assert recorded_environment(environment) == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "FI_PROVIDER=efa",
        "NCCL_DEBUG=INFO",
        "SLURM_JOB_ID=17",
        "SLURM_JOB_NODELIST=n[1-2]",
        "UCX_TLS=tcp",
    ]
