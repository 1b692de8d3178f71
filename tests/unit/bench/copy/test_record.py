"""The outputs: JSON and plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_box import MadeHost

from meshrun.jobs.bench.copy import heatmap
from meshrun.jobs.bench.copy.cases import BY_NAME
from meshrun.jobs.bench.copy.measure import CaseResult, MatrixCell
from meshrun.runner.errors import UserError

pytest.importorskip("matplotlib", reason="needs matplotlib")


def by_places(source: str, target: str) -> float:
    return 20e9 if "host" in (source, target) else 100e9


def test_json_holds_numbers_transfers_and_samples(bench_copy: Any, tmp_path: Path) -> None:
    path = tmp_path / "copies.json"
    host = MadeHost(2, rate=by_places, peers=lambda gpu, other: True)
    names = ("host_to_device_bidirectional_memcpy_ce", "device_to_device_bidirectional_memcpy_read_sm", "34")
    bench_copy(host, *names, ranks=2, output_file=str(path))
    whole = json.loads(path.read_text())
    assert whole["version"] == 1
    assert (whole["buffer_bytes"], whole["copies"], whole["samples"], whole["statistic"]) == (
        1 << 16,
        2,
        3,
        "median",
    )
    (one,) = whole["hosts"]
    assert [(gpu["number"], gpu["rank_of_host"], gpu["uuid"], gpu["bus_id"]) for gpu in one["gpus"]] == [
        (0, 0, "GPU-0", "0000:10:00.0"),
        (1, 1, "GPU-1", "0000:11:00.0"),
    ]
    up, both, local = one["testcases"]
    assert (up["index"], up["status"], up["unit"], up["path"], up["engine"]) == (
        2,
        "Passed",
        "GB/s",
        "host",
        "ce",
    )
    assert up["matrices"][0]["values"] == [[pytest.approx(20), pytest.approx(20)]]
    assert up["cells"][1]["transfers"] == [
        {"source": "host", "target": "GPU 1", "moved_by": 1, "factor": 1},
        {"source": "GPU 1", "target": "host", "moved_by": 1, "factor": 2},
    ]
    assert both["path"] == "peer"
    assert [len(values) for cell in both["cells"] for values in cell["samples"]] == [2] * 6
    assert up["matrices"][0]["variation"] == [[pytest.approx(0), pytest.approx(0)]]
    assert both["matrices"][0]["variation"] == [[None, pytest.approx(0)], [pytest.approx(0), None]]
    assert both["matrices"][2]["variation"] == [[None, None], [None, None]]  # sums have no samples
    assert (whole["huge_pages"], whole["pairs"]) == (False, None)
    total = both["matrices"][2]
    assert total["key"].endswith("_total")
    assert total["values"] == [[None, pytest.approx(200)], [pytest.approx(200), None]]
    assert (local["index"], local["mismatches"], local["waived"]) == (34, [], None)


def test_json_of_wrong_and_waived(bench_copy: Any, tmp_path: Path) -> None:
    path = tmp_path / "copies.json"

    def spoil(source: str, target: str, array: Any) -> None:
        array[0] ^= 1

    bench_copy(MadeHost(1, spoil=spoil), "device_local_copy", "all_to_one_read_ce", output_file=str(path))
    wrong, waived = json.loads(path.read_text())["hosts"][0]["testcases"]
    assert wrong["status"] == "Error"
    assert "device_local_copy, cell (0, 0), sample 0" in wrong["mismatches"][0]
    assert (waived["status"], waived["waived"]) == ("Waived", "it needs two GPUs, and there is 1")


def test_a_file_that_exists_is_kept(bench_copy: Any, tmp_path: Path) -> None:
    path = tmp_path / "copies.json"
    path.write_text("mine")
    bench_copy(MadeHost(1), "34", output_file=str(path))
    assert path.read_text() == "mine"
    assert json.loads((tmp_path / "copies.json.0").read_text())["version"] == 1


@pytest.mark.parametrize("suffix", [".html", ".svg", ".png"])
def test_heat_maps(bench_copy: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"copies{suffix}"
    bench_copy(MadeHost(3, rate=by_places), "0", "6", "33", plot=str(path))
    content = path.read_bytes()
    if suffix == ".png":
        assert content.startswith(b"\x89PNG")
        return
    text = content.decode()
    for key in (
        ">host_to_device_memcpy_ce<",
        "_memcpy_read_ce_total<",
        "latency_sm<",
        ">GB/s<",
        ">ns<",
        ">CPU<",
        ">GPU<",
    ):
        assert key in text
    if suffix == ".html":
        assert (
            "<td>device_to_device_bidirectional_memcpy_read_ce_read2</td><td>2</td><td>1</td><td>100</td>"
            in text
        )


def test_a_plot_of_nothing_has_no_panels(tmp_path: Path) -> None:
    case = BY_NAME["device_to_device_memcpy_read_ce"]
    waived = CaseResult(case, 1, (), waived="one GPU")
    heatmap.draw([("n1", waived)], str(tmp_path / "none.svg"))
    assert "<svg" in (tmp_path / "none.svg").read_text()


def test_hosts_are_named_where_there_are_several(tmp_path: Path) -> None:
    case = BY_NAME["device_local_copy"]
    (cell,) = case.cells(1)
    one = CaseResult(case, 1, (MatrixCell(0, 0, cell[2], (5.0,)),))
    heatmap.draw([("n1", one), ("n2", one)], str(tmp_path / "two.svg"))
    assert "n2 device_local_copy" in (tmp_path / "two.svg").read_text()


def test_a_plot_that_cannot_be_is_refused_before_all(bench_copy: Any) -> None:
    ended = bench_copy(MadeHost(1), "34", plot="copies.pdf")
    assert isinstance(ended.failure, UserError)
    assert ended.text == ""
