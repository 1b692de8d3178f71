"""Read records from text, with and without a launcher's output, and from JSON."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.output.nccl_tests_json import combined, json_line, record
from meshrun.jobs.bench.collectives.output.nccl_tests_text import WIDE, colour, footer, header, row
from meshrun.jobs.bench.collectives.output.reader import (
    BenchRecord,
    Figures,
    RowKey,
    median,
    of_rows,
    read,
    read_each,
)
from meshrun.jobs.bench.collectives.results import (
    Footer,
    Header,
    Iterations,
    PlacementResult,
    RankDevice,
    ResultRow,
)
from meshrun.runner.errors import UserError

# As nccl-tests 2.16 printed it: narrower #wrong, no concluding line.
OLD = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 4194304 step: 4096(factor) warmup iters: 5 iters: 20 "
    "agg iters: 1 validation: 1 graph: 0\n"
    "#\n"
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid   6899 on         c7 device  0 [0x04] NVIDIA H100 80GB HBM3\n"
    "#\n"
    "#                                                              out-of-place"
    "                       in-place          \n"
    "#       size         count      type   redop    root"
    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                          "
    "     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n"
    "           8             2     float     sum      -1"
    "    31.45    0.00    0.00      0    31.52    0.00    0.00    N/A\n"
    "     4194304       1048576     float     sum      -1"
    "    99.71   42.06   42.06      0    105.9   39.61   39.61  1e+06\n"
    "# Out of bounds values : 0 OK\n"
    "# Avg bus bandwidth    : 20.4175 \n"
    "#\n"
)
EXPECTED = {
    RowKey(8, 2, "float", "sum", -1): {
        "out_of_place": (Figures(31.45, 0.0, 0.0, 0),),
        "in_place": (Figures(31.52, 0.0, 0.0, None),),
    },
    RowKey(4194304, 1048576, "float", "sum", -1): {
        "out_of_place": (Figures(99.71, 42.06, 42.06, 0),),
        "in_place": (Figures(105.9, 39.61, 39.61, 1000000),),
    },
}

HEADER = Header(
    "broadcast_perf", 22809, "MPI, host memory", (RankDevice(0, 0, 7, "c7", 0, "0000:00:00", "CPU"),)
)
ITERATIONS = Iterations((30e-6, 34e-6), ())
ROWS = [
    ResultRow(
        1 << size,
        1 << size,
        "int8",
        "none",
        root,
        PlacementResult(12.5e-6, 1.5e-6, 1.25, 1.5, 0, iterations=ITERATIONS),
        PlacementResult(9e-3, 2e-6, 0.75, 1.0, None, iterations=ITERATIONS),
        finished=1750000000.0,
    )
    for size in (3, 20)
    for root in (0, 1)
]
SETTINGS = SweepSettings(per_iter_timing=True, report_timestamps=True)


def without_iterations(one: ResultRow) -> ResultRow:
    placements = {name: replace(getattr(one, name), iterations=None) for name in ("out_of_place", "in_place")}
    return replace(one, **placements)


def rows_of(settings: SweepSettings) -> list[ResultRow]:
    return ROWS if settings.per_iter_timing else [without_iterations(one) for one in ROWS]


def ours(settings: SweepSettings = SETTINGS, wide: bool = False) -> str:
    rows = "".join(row(settings, one, (WIDE,) * wide) for one in rows_of(settings))
    return header(settings, HEADER, (WIDE,) * wide) + rows + footer(settings, Footer(0, 1.25), HEADER.program)


def our_json(settings: SweepSettings = SETTINGS) -> str:
    return record(settings, HEADER, rows_of(settings), Footer(0, 1.25), ["meshrun"], {}, 0.0, 1.0)


def parse(tmp_path: Path, text: str) -> BenchRecord:
    path = tmp_path / "record"
    path.write_text(text)
    return read(path)


@pytest.mark.parametrize("program", ["pingpong", "scale"])
def test_a_record_with_other_rows_is_refused_by_name(tmp_path: Path, program: str) -> None:
    with pytest.raises(UserError, match=f"is a record of {program}, which has other rows"):
        parse(tmp_path, json.dumps({"program": program, "results": [{"size": 8}]}))


def test_nccl_tests_text(tmp_path: Path) -> None:
    found = parse(tmp_path, OLD)
    assert found.rows == EXPECTED
    assert (found.clock, found.program, found.library, found.average) == ("time", None, None, 20.4175)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        " 0: ",
        "0: ",
        "[pod/nccl-launcher] ",
        "2026-01-02T03:04:05.678Z ",
        "\t",
    ],
)
def test_a_launcher_may_label_every_line(tmp_path: Path, prefix: str) -> None:
    noise = "Warning: Permanently added 'c7' to the list of known hosts.\nc7:12:34 [0] NCCL INFO 8 2 x\n"
    text = noise + "".join(f"{prefix}{line}\n" for line in OLD.splitlines()) + noise
    assert parse(tmp_path, text).rows == EXPECTED


def test_colours_are_looked_through(tmp_path: Path) -> None:
    text = header(SETTINGS, HEADER) + "".join(colour(row(SETTINGS, one), one) for one in ROWS)
    assert parse(tmp_path, text).rows == parse(tmp_path, ours()).rows


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("settings", [SweepSettings(), SETTINGS, SweepSettings(report_cputime=True)])
def test_all_our_formats_agree(tmp_path: Path, settings: SweepSettings, wide: bool) -> None:
    lines = "".join(json_line(settings, HEADER, one) for one in ROWS)
    live = of_rows("live", settings, HEADER, ROWS)
    assert list(live.rows) == [RowKey(8, 8, "int8", "none", 0), RowKey(8, 8, "int8", "none", 1)] + [
        RowKey(1 << 20, 1 << 20, "int8", "none", root) for root in (0, 1)
    ]
    for text in (ours(settings, wide), our_json(settings), lines):
        found = parse(tmp_path, text)
        assert (found.program, found.library, found.clock) == (live.program, live.library, live.clock)
        assert list(found.rows) == list(live.rows)
        for key, placements in live.rows.items():
            for name, (expected,) in placements.items():
                (got,) = found.rows[key][name]
                assert got.wrong == expected.wrong
                for metric in ("time_us", "algbw", "busbw"):
                    assert getattr(got, metric) == pytest.approx(getattr(expected, metric))


def test_cycles_are_kept_and_their_median_counts(tmp_path: Path) -> None:
    body = OLD[OLD.index("           8 ") : OLD.index("# Out of")]
    text = OLD.replace(body, body + body.replace("31.45", "33.00") + body.replace("31.45", "90.00"))
    cycles = parse(tmp_path, text).rows[RowKey(8, 2, "float", "sum", -1)]["out_of_place"]
    assert [of.time_us for of in cycles] == [31.45, 33.0, 90.0]
    assert median(cycles, "time_us") == 33.0
    assert math.isnan(median([*cycles, Figures(math.nan, 0, 0, 0)], "time_us"))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nccl_tests_json(tmp_path: Path, version: int) -> None:
    placement = {"time": 31.45, "alg_bw": 1.5, "bus_bw": "nan", "nwrong": 0.0}
    result = {"size": 8, "count": 2, "type": "float", "redop": "sum", "root": "    -1"}
    result |= {"out_of_place": placement, "in_place": {**placement, "nwrong": None}}
    document = {
        "version": version,
        "args": ["./build/all_reduce_perf", "-b", "8"],
        "nccl_version": 22707,
        "results": [result, {**result, "size": 16, "out_of_place": None}],
        "average_bus_bandwidth": {"bandwidth": 1.25, "okay": "unchecked"},
    }
    found = parse(tmp_path, json.dumps(document))
    assert (found.program, found.library, found.average) == ("all_reduce_perf", 22707, 1.25)
    first, second = found.rows.values()
    assert first["out_of_place"][0].time_us == 31.45
    assert math.isnan(first["out_of_place"][0].busbw)
    assert [first[name][0].wrong for name in ("out_of_place", "in_place")] == [0, None]
    assert list(second) == ["in_place"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no measurements"),
        ("Hello\n", "holds no measurements"),
        (OLD[: OLD.index("           8 ")], "holds no measurements"),  # titles without rows
        (OLD[OLD.index("           8 ") :], "holds no measurements"),  # rows without titles
        (OLD[: OLD.index("    105.9")], "line 10 .* truncated row or is mixed"),
        (OLD.replace("    31.45", "c7:1:2 NCCL INFO"), "line 9 .* truncated row or is mixed"),
        (
            ours() + ours().replace("broadcast_perf", "reduce_perf"),
            "more than one test: got broadcast_perf, re",
        ),
        (
            ours(SweepSettings()) + ours(SweepSettings(report_cputime=True)),
            "more than one clock: got cputime, time",
        ),
        ("{}", "no record of measurements"),
        (our_json().replace('"size": 8,', '"size": 1e400,'), "no record of measurements: got .*size inf"),
        (
            our_json().replace('"size": 8,', '"size": ' + "1" + 400 * "0" + ","),
            "no record of measurements: got .*size 1000",
        ),
        (our_json().replace('"size": 8,', '"size": "8",'), "no record of measurements: got .*size '8'"),
        (OLD.replace("           8 ", f" 1{400 * '0'} ", 1), "line 9 .* truncated row or is mixed"),
        ('{"version": 3, "results": [], "args": ["x"]}', "no record of measurements"),
        (our_json().replace('"version": 3', '"version": 4'), r"no record of measurements: got .*version 4"),
        (our_json().replace('"alg_bw"', '"algbw"'), "no record of measurements"),
        (our_json()[:-40], "truncated JSON"),
        ("".join(json_line(SETTINGS, HEADER, one) for one in ROWS)[:-9], "truncated JSON"),
        (record(SETTINGS, HEADER, [], Footer(0, 0.0), ["meshrun"], {}, 0, 1), "holds no measurements"),
    ],
)
def test_what_cannot_be_made_out_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse(tmp_path, text)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        read(tmp_path / "none")


# Titles, rows and what is read of them, by the layouts of nccl-tests' text; with fewer blanks.
LAYOUTS = {
    "2017, all_reduce": (
        "#  bytes  N  type  op  time  algbw  busbw  res  time  algbw  busbw  res",
        "  10000000  2500000  float  sum  1.631  6.13  9.20  1e-06  1.643  6.09  9.13  1e-03",
        (RowKey(10000000, 2500000, "float", "sum", -1), (1631.0, 0), (1643.0, 1)),
    ),
    "2017, broadcast": (
        "#  bytes  N  type  root  time  algbw  busbw  res",
        "  1048576  1048576  char  3  0.500  2.10  2.10  0e+00",
        (RowKey(1048576, 1048576, "char", "none", 3), (500.0, 0), None),
    ),
    "2017, all_gather, not checked": (
        "#  bytes  N  type  time  algbw  busbw  res  time  algbw  busbw  res",
        "  1048576  262144  int  0.500  2.10  2.10  \tN/A  0.501  2.09  2.09  \tN/A",
        (RowKey(1048576, 262144, "int", "none", -1), (500.0, None), (501.0, None)),
    ),
    "2019, all_reduce": (
        "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error",
        "  8388608  2097152  float  sum  153.7  54.58  54.58  5e-07  154.3  54.36  54.36  N/A",
        (RowKey(8388608, 2097152, "float", "sum", -1), (153.7, 0), (154.3, None)),
    ),
    "2019, all_gather": (
        "#  size  count  type  time  algbw  busbw  error  time  algbw  busbw  error",
        "  8388608  1048576  half  80.10  104.73  52.36  0e+00  80.20  104.60  52.30  nan",
        (RowKey(8388608, 1048576, "half", "none", -1), (80.1, 0), (80.2, 1)),
    ),
    "2019, reduce": (
        "#  size  count  type  redop  root  time  algbw  busbw  error  time  algbw  busbw  error",
        "  8388608  2097152  int32  prod  1  80.10  104.73  104.73  1e+00  80.20  104.60  104.60  0e+00",
        (RowKey(8388608, 2097152, "int32", "prod", 1), (80.1, 1), (80.2, 0)),
    ),
    "2022, the reduction left blank": (
        "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong",
        "  8388608  1048576  int8  -1  80.10  104.73  52.36  0  80.20  104.60  52.30  N/A",
        (RowKey(8388608, 1048576, "int8", "none", -1), (80.1, 0), (80.2, None)),
    ),
    "2026, a replayed trace": (
        "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong",
        f"  8388608  1048576  int8  none  -1{32 * ' '}  80.20  104.60  52.30  2",
        (RowKey(8388608, 1048576, "int8", "none", -1), None, (80.2, 2)),
    ),
}  # fmt: skip
DEVICES = "# Using devices\n" + "".join(
    f"#   Rank  {rank} on   c7 device  {rank} [0x04] H100\n" for rank in (0, 1)
)


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_nccl_tests_is_read(tmp_path: Path, layout: str, prefix: str) -> None:
    titles, row_text, (key, *expected) = LAYOUTS[layout]
    text = f"{DEVICES}{titles}\n{row_text}\n# Avg bus bandwidth    : 7.5\n"
    found = parse(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert list(found.rows) == [key]
    placements = zip(("out_of_place", "in_place"), expected, strict=True)
    wanted = {name: values for name, values in placements if values is not None}
    read_ = {name: (of.time_us, of.wrong) for name, (of,) in found.rows[key].items()}
    assert read_ == {name: (pytest.approx(time), wrong) for name, (time, wrong) in wanted.items()}
    assert found.average == 7.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_row_of_any_layout_is_an_error(tmp_path: Path, layout: str) -> None:
    titles, row_text, _ = LAYOUTS[layout]
    with pytest.raises(UserError, match=r"line 2 .* truncated row"):
        parse(tmp_path, f"{titles}\n{row_text.rstrip()[:-12].rstrip()}\n")


def test_an_error_of_unknown_ranks_is_not_judged(tmp_path: Path) -> None:
    titles, row_text, (key, *_) = LAYOUTS["2017, all_reduce"]
    (of,) = parse(tmp_path, f"{titles}\n{row_text}\n").rows[key]["in_place"]
    assert of.wrong is None


def test_text_of_several_operations_is_read_test_by_test(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_text(ours() + ours().replace("broadcast_perf", "reduce_perf"))
    found = read_each(path)
    assert list(found) == ["broadcast", "reduce"]
    for name, one in found.items():
        assert (one.program, one.library, one.average) == (f"{name}_perf", 22809, 1.25)
        assert one.rows == parse(tmp_path, ours()).rows


def test_text_and_json_of_bench_all_have_the_same_names(tmp_path: Path) -> None:
    text, document = tmp_path / "text", tmp_path / "json"
    text.write_text(ours() + ours().replace("broadcast_perf", "reduce_perf"))
    document.write_text(
        combined({"broadcast": our_json(), "reduce": our_json().replace("broadcast", "reduce")})
    )
    assert list(read_each(text)) == list(read_each(document))


def test_a_blank_reduction_is_the_same_in_text_and_json(tmp_path: Path) -> None:
    blank = replace(ROWS[0], reduction="", out_of_place=PlacementResult(1e-6, 1e-6, 1.0, 1.0, 0))
    blank = replace(blank, in_place=blank.out_of_place)
    settings = SweepSettings()
    document = record(settings, HEADER, [blank], Footer(0, 1.0), ["meshrun"], {}, 0.0, 1.0)
    text = header(settings, HEADER) + row(settings, blank)
    assert [*parse(tmp_path, text).rows] == [*parse(tmp_path, document).rows]


def test_a_failed_run_of_nccl_tests_has_its_rows(tmp_path: Path) -> None:
    """It closes its JSON without an average; the last row may have one placement."""
    placement = {"time": 31.45, "alg_bw": 1.5, "bus_bw": 1.5, "nwrong": None}
    row_of = {
        "size": 8,
        "count": 2,
        "type": "float",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": placement,
    }
    document = {"version": 3, "args": ["all_reduce_perf"], "results": [row_of]}
    (placements,) = parse(tmp_path, json.dumps(document)).rows.values()
    assert list(placements) == ["out_of_place"]


def test_infinity_as_c_writes_it_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    text = our_json(SweepSettings()).replace('"alg_bw": 1.25', '"alg_bw": inf')
    assert '"alg_bw": inf' in text
    (first, *_) = parse(tmp_path, "\ufeff" + text).rows.values()
    assert first["out_of_place"][0].algbw == math.inf


OTHER_JSON = [
    ([1, 2], "is JSON, but no record of measurements: got a list"),
    ([{"size": 8}], "is JSON, but no record of measurements: got a list"),
    (5, "is JSON, but no record of measurements: got a number"),
    ("text", "is JSON, but no record of measurements: got a string"),
    (None, "is JSON, but no record of measurements: got null"),
    ({}, "is JSON, but no record of measurements: got an object without keys"),
    ({"a": 1, "b": 2}, "is JSON, but no record of measurements: got an object with the keys a, b, expected"),
    ({"results": 5, "version": 3}, "an object with the keys results, version"),
    ({"schema": 1, "kind": "run", "results": []}, "is a record of meshrun run, which has other rows"),
    ({"schema": 2, "kind": "validate"}, "is a record of meshrun validate, which has other rows"),
    ({"program": "overlap", "rows": []}, "is a record of overlap, which has other rows"),
    ({"nvbandwidth": {"testcases": []}}, "is a record of nvbandwidth, which has other rows"),
    ({"version": 1, "meshrun": "1.0", "buffer_bytes": 1, "hosts": []}, "is a record of meshrun bench copy"),
    ({"version": "1.0", "lesson": "pool"}, "is a record of meshrun bench memory pool"),
    ({"operations": [1]}, "an object with the keys operations"),
    ({"operations": {"all_reduce": 5}}, "is JSON, but no record of measurements: got a number"),
    ({"operations": {}}, "holds no measurements"),
    ({"version": 3, "args": ["x"], "results": [5]}, "row 1 of results"),
    ({"version": 3, "args": ["x"], "results": [{"size": 8}]}, "row 1 of results has no 'count'"),
    ({"version": 3, "args": [], "results": [{}]}, "args: list index out of range"),
    ({"version": 3, "results": [{}]}, "no 'args'"),
]


@pytest.mark.parametrize(("document", "sentence"), OTHER_JSON, ids=lambda value: str(value)[:40])
def test_other_json_is_described(tmp_path: Path, document: object, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)) as refused:
        parse(tmp_path, json.dumps(document))
    assert "expected text or JSON of meshrun bench" in str(refused.value) or "holds no" in sentence
    assert "Error(" not in str(refused.value)


def test_json_that_is_nested_too_deeply_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nested too deeply|truncated"):
        parse(tmp_path, 100_000 * "[")
