"""Titles, and the selection of cases."""

from __future__ import annotations

import pytest

from meshrun.jobs.bench.copy.cases import BY_NAME, CASES, HOST, UnknownCase, chosen, listing

TITLES = {
    "host_to_device_memcpy_ce": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_host_memcpy_sm": "memcpy SM CPU(row) <- GPU(column) bandwidth (GB/s)",
    "host_to_device_bidirectional_memcpy_sm": "memcpy SM CPU(row) <-> GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_read_ce": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_write_sm": "memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)",
    "all_to_host_memcpy_ce": "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
    "host_to_all_bidirectional_memcpy_ce": "memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)",
    "all_to_one_write_ce": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
    "all_to_one_read_sm": "memcpy SM GPU(row) -> GPU(column) bandwidth (GB/s)",
    "one_to_all_write_ce": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "one_to_all_read_ce": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
    "host_device_latency_sm": "memory latency SM CPU(row) <-> GPU(column) (ns)",
    "device_to_device_latency_sm": "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)",
    "device_local_copy": "memcpy local GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_read_tma": "memcpy TMA GPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_local_copy_sm": "memcpy local SM GPU(column) bandwidth (GB/s)",
    "device_local_copy_tma": "memcpy local TMA GPU(column) bandwidth (GB/s)",
    "device_local_read_sm": "memcpy local read SM GPU(column) bandwidth (GB/s)",
    "device_local_write_sm": "memcpy local write SM GPU(column) bandwidth (GB/s)",
    "device_to_device_latency_tma": "Device to Device Latency TMA GPU(row) <-> GPU(column) (ns)",
}


@pytest.mark.parametrize("name", TITLES)
def test_titles_are_nvbandwidths(name: str) -> None:
    assert BY_NAME[name].matrices == ((name, TITLES[name]),)


def test_bidirectional_pairs_have_three_matrices() -> None:
    name = "device_to_device_bidirectional_memcpy_write_sm"
    about = "memcpy SM GPU(row) <-> GPU(column) {} bandwidth (GB/s)"
    assert BY_NAME[name].matrices == (
        (f"{name}_write1", about.format("Write1")),
        (f"{name}_write2", about.format("Write2")),
        (f"{name}_total", about.format("Total")),
    )
    keys = [key for key, _ in BY_NAME["device_to_device_bidirectional_memcpy_read_ce"].matrices]
    assert [key.rpartition("_")[2] for key in keys] == ["read1", "read2", "total"]


def test_paths() -> None:
    paths = {case.name: case.path for case in (*CASES, HOST)}
    assert paths["host_to_all_memcpy_ce"] == paths["host_device_latency_sm"] == "host"
    assert paths["all_to_one_read_sm"] == paths["device_to_device_latency_sm"] == "peer"
    assert paths["device_local_copy"] == paths["host_local_copy"] == "local"


def test_by_name_and_by_index() -> None:
    assert [case.name for case in chosen(["38", "host_to_device_memcpy_ce", "0"])] == [
        "device_local_copy",
        "host_to_device_memcpy_ce",
    ]
    assert chosen(["host_local_copy"]) == (HOST,)


def test_by_prefix_in_nvbandwidths_order() -> None:
    found = [case.name for case in chosen((), ["one_to_all", "device_to_host_memcpy"])]
    assert found == [
        "device_to_host_memcpy_ce",
        "one_to_all_write_ce",
        "one_to_all_read_ce",
        "device_to_host_memcpy_sm",
        "one_to_all_write_sm",
        "one_to_all_read_sm",
    ]


@pytest.mark.parametrize(
    ("names", "prefixes", "text"),
    [
        (["device_to_device_memcpy_read"], [], "did you mean device_to_device_memcpy_read_"),
        (["44"], [], "numbered 0 to 43, not 44"),
        (["-1"], [], "no test case '-1'; --list"),
        (["²"], [], "no test case '²'; --list"),
        ([], ["device", "nothing"], "begins with 'nothing'"),
    ],
)
def test_unknown_cases_are_refused(names: list[str], prefixes: list[str], text: str) -> None:
    with pytest.raises(UnknownCase, match=text):
        chosen(names, prefixes)


def test_the_list_has_every_case_with_its_index() -> None:
    lines = listing().splitlines()[2:]
    assert [line.split(",")[0].strip() for line in lines] == [*map(str, range(44)), "-"]
    assert [line.split(", ")[1].split(":")[0] for line in lines] == list(BY_NAME)
