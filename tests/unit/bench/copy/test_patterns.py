"""The transfers of every cell of every case, and the moving GPU; read from nvbandwidth's source by hand.

Notation: h0>1@1 is host memory near GPU 0 to GPU 1, moved by GPU 1; *2 is twice the buffer's size.
"""

from __future__ import annotations

import pytest

from meshrun.jobs.bench.copy.cases import BY_NAME, CASES, Case, CopyTransfer, MemoryPlace

NAMES = [
    "host_to_device_memcpy_ce",
    "device_to_host_memcpy_ce",
    "host_to_device_bidirectional_memcpy_ce",
    "device_to_host_bidirectional_memcpy_ce",
    "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_write_ce",
    "device_to_device_bidirectional_memcpy_read_ce",
    "device_to_device_bidirectional_memcpy_write_ce",
    "all_to_host_memcpy_ce",
    "all_to_host_bidirectional_memcpy_ce",
    "host_to_all_memcpy_ce",
    "host_to_all_bidirectional_memcpy_ce",
    "all_to_one_write_ce",
    "all_to_one_read_ce",
    "one_to_all_write_ce",
    "one_to_all_read_ce",
    "host_to_device_memcpy_sm",
    "device_to_host_memcpy_sm",
    "host_to_device_bidirectional_memcpy_sm",
    "device_to_host_bidirectional_memcpy_sm",
    "device_to_device_memcpy_read_sm",
    "device_to_device_memcpy_write_sm",
    "device_to_device_bidirectional_memcpy_read_sm",
    "device_to_device_bidirectional_memcpy_write_sm",
    "all_to_host_memcpy_sm",
    "all_to_host_bidirectional_memcpy_sm",
    "host_to_all_memcpy_sm",
    "host_to_all_bidirectional_memcpy_sm",
    "all_to_one_write_sm",
    "all_to_one_read_sm",
    "one_to_all_write_sm",
    "one_to_all_read_sm",
    "host_device_latency_sm",
    "device_to_device_latency_sm",
    "device_to_device_memcpy_read_tma",
    "device_to_device_memcpy_write_tma",
    "device_to_device_bidirectional_memcpy_read_tma",
    "device_to_device_bidirectional_memcpy_write_tma",
    "device_local_copy",
    "device_local_copy_sm",
    "device_local_read_sm",
    "device_local_write_sm",
    "device_to_device_latency_tma",
    "device_local_copy_tma",
]

# Case -> (row, column) -> transfers, for two GPUs.
TWO = {
    "host_to_device_memcpy_ce": {(0, 0): "h0>0@0", (0, 1): "h1>1@1"},
    "device_to_host_memcpy_ce": {(0, 0): "0>h0@0", (0, 1): "1>h1@1"},
    "host_to_device_bidirectional_memcpy_ce": {(0, 0): "h0>0@0 0>h0@0*2", (0, 1): "h1>1@1 1>h1@1*2"},
    "device_to_host_bidirectional_memcpy_ce": {(0, 0): "0>h0@0 h0>0@0*2", (0, 1): "1>h1@1 h1>1@1*2"},
    "device_to_device_memcpy_read_ce": {(0, 1): "1>0@0", (1, 0): "0>1@1"},
    "device_to_device_memcpy_write_ce": {(0, 1): "0>1@0", (1, 0): "1>0@1"},
    "device_to_device_bidirectional_memcpy_read_ce": {(0, 1): "1>0@0 0>1@1", (1, 0): "0>1@1 1>0@0"},
    "device_to_device_bidirectional_memcpy_write_ce": {(0, 1): "1>0@1 0>1@0", (1, 0): "0>1@0 1>0@1"},
    "all_to_host_memcpy_ce": {(0, 0): "0>h0@0 1>h1@1*2", (0, 1): "1>h1@1 0>h0@0*2"},
    "all_to_host_bidirectional_memcpy_ce": {
        (0, 0): "0>h0@0 h0>0@0*2 1>h1@1*2 h1>1@1*2",
        (0, 1): "1>h1@1 h1>1@1*2 0>h0@0*2 h0>0@0*2",
    },
    "host_to_all_memcpy_ce": {(0, 0): "h0>0@0 h1>1@1*2", (0, 1): "h1>1@1 h0>0@0*2"},
    "host_to_all_bidirectional_memcpy_ce": {
        (0, 0): "h0>0@0 0>h0@0*2 1>h1@1*2 h1>1@1*2",
        (0, 1): "h1>1@1 1>h1@1*2 0>h0@0*2 h0>0@0*2",
    },
    "all_to_one_write_ce": {(0, 0): "1>0@1", (0, 1): "0>1@0"},
    "all_to_one_read_ce": {(0, 0): "0>1@1", (0, 1): "1>0@0"},
    "one_to_all_write_ce": {(0, 0): "0>1@0", (0, 1): "1>0@1"},
    "one_to_all_read_ce": {(0, 0): "1>0@0", (0, 1): "0>1@1"},
    "host_to_device_memcpy_sm": {(0, 0): "h0>0@0", (0, 1): "h1>1@1"},
    "device_to_host_memcpy_sm": {(0, 0): "0>h0@0", (0, 1): "1>h1@1"},
    "host_to_device_bidirectional_memcpy_sm": {(0, 0): "h0>0@0", (0, 1): "h1>1@1"},
    "device_to_host_bidirectional_memcpy_sm": {(0, 0): "h0>0@0", (0, 1): "h1>1@1"},
    "device_to_device_memcpy_read_sm": {(0, 1): "1>0@0", (1, 0): "0>1@1"},
    "device_to_device_memcpy_write_sm": {(0, 1): "0>1@0", (1, 0): "1>0@1"},
    "device_to_device_bidirectional_memcpy_read_sm": {(0, 1): "1>0@0 0>1@1", (1, 0): "0>1@1 1>0@0"},
    "device_to_device_bidirectional_memcpy_write_sm": {(0, 1): "1>0@1 0>1@0", (1, 0): "0>1@0 1>0@1"},
    "all_to_host_memcpy_sm": {(0, 0): "0>h0@0 1>h1@1*2", (0, 1): "1>h1@1 0>h0@0*2"},
    "all_to_host_bidirectional_memcpy_sm": {(0, 0): "0>h0@0 1>h1@1", (0, 1): "1>h1@1 0>h0@0"},
    "host_to_all_memcpy_sm": {(0, 0): "h0>0@0 h1>1@1*2", (0, 1): "h1>1@1 h0>0@0*2"},
    "host_to_all_bidirectional_memcpy_sm": {(0, 0): "h0>0@0 1>h1@1", (0, 1): "h1>1@1 0>h0@0"},
    "all_to_one_write_sm": {(0, 0): "1>0@1", (0, 1): "0>1@0"},
    "all_to_one_read_sm": {(0, 0): "0>1@0", (0, 1): "1>0@1"},
    "one_to_all_write_sm": {(0, 0): "0>1@0", (0, 1): "1>0@1"},
    "one_to_all_read_sm": {(0, 0): "1>0@1", (0, 1): "0>1@0"},
    "host_device_latency_sm": {(0, 0): "h0>0@0", (0, 1): "h1>1@1"},
    "device_to_device_latency_sm": {(0, 1): "1>0@0", (1, 0): "0>1@1"},
    "device_to_device_memcpy_read_tma": {(0, 1): "1>0@0", (1, 0): "0>1@1"},
    "device_to_device_memcpy_write_tma": {(0, 1): "0>1@0", (1, 0): "1>0@1"},
    "device_to_device_bidirectional_memcpy_read_tma": {(0, 1): "1>0@0 0>1@1", (1, 0): "0>1@1 1>0@0"},
    "device_to_device_bidirectional_memcpy_write_tma": {(0, 1): "1>0@1 0>1@0", (1, 0): "0>1@0 1>0@1"},
    "device_local_copy": {(0, 0): "0>0@0", (0, 1): "1>1@1"},
    "device_local_copy_sm": {(0, 0): "0>0@0", (0, 1): "1>1@1"},
    "device_local_read_sm": {(0, 0): "0>0@0", (0, 1): "1>1@1"},
    "device_local_write_sm": {(0, 0): "0>0@0", (0, 1): "1>1@1"},
    "device_to_device_latency_tma": {(0, 1): "1>0@0", (1, 0): "0>1@1"},
    "device_local_copy_tma": {(0, 0): "0>0@0", (0, 1): "1>1@1"},
}

# For three GPUs, some cells of every case: those where a third GPU could be mistaken for one of the two.
THREE = {
    "host_to_device_memcpy_ce": {(0, 2): "h2>2@2"},
    "device_to_host_memcpy_ce": {(0, 2): "2>h2@2"},
    "host_to_device_bidirectional_memcpy_ce": {(0, 2): "h2>2@2 2>h2@2*2"},
    "device_to_host_bidirectional_memcpy_ce": {(0, 2): "2>h2@2 h2>2@2*2"},
    "device_to_device_memcpy_read_ce": {(0, 2): "2>0@0", (1, 2): "2>1@1", (2, 0): "0>2@2"},
    "device_to_device_memcpy_write_ce": {(0, 2): "0>2@0", (1, 2): "1>2@1", (2, 0): "2>0@2"},
    "device_to_device_bidirectional_memcpy_read_ce": {(1, 2): "2>1@1 1>2@2"},
    "device_to_device_bidirectional_memcpy_write_ce": {(1, 2): "2>1@2 1>2@1"},
    "all_to_host_memcpy_ce": {(0, 1): "1>h1@1 0>h0@0*2 2>h2@2*2"},
    "all_to_host_bidirectional_memcpy_ce": {(0, 1): "1>h1@1 h1>1@1*2 0>h0@0*2 h0>0@0*2 2>h2@2*2 h2>2@2*2"},
    "host_to_all_memcpy_ce": {(0, 1): "h1>1@1 h0>0@0*2 h2>2@2*2"},
    "host_to_all_bidirectional_memcpy_ce": {(0, 1): "h1>1@1 1>h1@1*2 0>h0@0*2 h0>0@0*2 2>h2@2*2 h2>2@2*2"},
    "all_to_one_write_ce": {(0, 1): "0>1@0 2>1@2"},
    "all_to_one_read_ce": {(0, 1): "1>0@0 1>2@2"},
    "one_to_all_write_ce": {(0, 1): "1>0@1 1>2@1"},
    "one_to_all_read_ce": {(0, 1): "0>1@1 2>1@1"},
    "host_to_device_memcpy_sm": {(0, 2): "h2>2@2"},
    "device_to_host_memcpy_sm": {(0, 2): "2>h2@2"},
    "host_to_device_bidirectional_memcpy_sm": {(0, 2): "h2>2@2"},
    "device_to_host_bidirectional_memcpy_sm": {(0, 2): "h2>2@2"},
    "device_to_device_memcpy_read_sm": {(1, 2): "2>1@1"},
    "device_to_device_memcpy_write_sm": {(1, 2): "1>2@1"},
    "device_to_device_bidirectional_memcpy_read_sm": {(1, 2): "2>1@1 1>2@2"},
    "device_to_device_bidirectional_memcpy_write_sm": {(1, 2): "2>1@2 1>2@1"},
    "all_to_host_memcpy_sm": {(0, 1): "1>h1@1 0>h0@0*2 2>h2@2*2"},
    "all_to_host_bidirectional_memcpy_sm": {(0, 1): "1>h1@1 0>h0@0 2>h2@2"},
    "host_to_all_memcpy_sm": {(0, 1): "h1>1@1 h0>0@0*2 h2>2@2*2"},
    "host_to_all_bidirectional_memcpy_sm": {(0, 1): "h1>1@1 0>h0@0 2>h2@2"},
    "all_to_one_write_sm": {(0, 1): "0>1@0 2>1@2"},
    "all_to_one_read_sm": {(0, 1): "1>0@1 1>2@1"},
    "one_to_all_write_sm": {(0, 1): "1>0@1 1>2@1"},
    "one_to_all_read_sm": {(0, 1): "0>1@0 2>1@2"},
    "host_device_latency_sm": {(0, 2): "h2>2@2"},
    "device_to_device_latency_sm": {(1, 2): "2>1@1", (2, 1): "1>2@2"},
    "device_to_device_memcpy_read_tma": {(1, 2): "2>1@1"},
    "device_to_device_memcpy_write_tma": {(1, 2): "1>2@1"},
    "device_to_device_bidirectional_memcpy_read_tma": {(1, 2): "2>1@1 1>2@2"},
    "device_to_device_bidirectional_memcpy_write_tma": {(1, 2): "2>1@2 1>2@1"},
    "device_local_copy": {(0, 2): "2>2@2"},
    "device_local_copy_sm": {(0, 2): "2>2@2"},
    "device_local_read_sm": {(0, 2): "2>2@2"},
    "device_local_write_sm": {(0, 2): "2>2@2"},
    "device_to_device_latency_tma": {(1, 2): "2>1@1", (2, 1): "1>2@2"},
    "device_local_copy_tma": {(0, 2): "2>2@2"},
}

SPLIT = {
    "host_to_device_bidirectional_memcpy_sm",
    "device_to_host_bidirectional_memcpy_sm",
    "all_to_host_bidirectional_memcpy_sm",
    "host_to_all_bidirectional_memcpy_sm",
}


def place(place: MemoryPlace) -> str:
    return f"{'h' if place.kind == 'host' else ''}{place.gpu}"


def transfer(transfer: CopyTransfer) -> str:
    times = f"*{transfer.factor}" if transfer.factor != 1 else ""
    return f"{place(transfer.source)}>{place(transfer.target)}@{transfer.gpu}{times}"


def cells(case: Case, gpus: int) -> dict[tuple[int, int], str]:
    return {(row, column): " ".join(map(transfer, transfers)) for row, column, transfers in case.cells(gpus)}


def test_names_and_indices_are_nvbandwidths() -> None:
    assert [case.name for case in CASES] == NAMES
    assert len(NAMES) == 44


def test_every_case_has_flows_below() -> None:
    assert list(TWO) == list(THREE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_flows_of_two_gpus(name: str) -> None:
    assert cells(BY_NAME[name], 2) == TWO[name]


@pytest.mark.parametrize("name", NAMES)
def test_flows_of_three_gpus(name: str) -> None:
    found = cells(BY_NAME[name], 3)
    assert {cell: found[cell] for cell in THREE[name]} == THREE[name]
    pairs = BY_NAME[name].rows == "gpus"
    everywhere = {(row, column) for row in range(3) for column in range(3) if row != column}
    assert set(found) == (everywhere if pairs else {(0, column) for column in range(3)})


@pytest.mark.parametrize("name", NAMES)
def test_engines_and_what_is_reported(name: str) -> None:
    case = BY_NAME[name]
    engine = "split" if name in SPLIT else "chase" if "latency" in name else name.rpartition("_")[2]
    others = {
        "device_local_copy": "ce",
        "device_local_read_sm": "read",
        "device_local_write_sm": "write",
        "device_to_device_latency_tma": "chase_tma",
    }
    assert case.engine == others.get(name, engine)
    each = name.startswith("device_to_device_bidirectional")
    total = "one" in name.split("_")
    assert case.reports == ("each" if each else "total" if total else "first")
    assert case.unit == ("ns" if "latency" in name else "GB/s")


def test_one_gpu_has_no_pairs_and_no_interference() -> None:
    assert cells(BY_NAME["device_to_device_memcpy_read_ce"], 1) == {}
    assert cells(BY_NAME["all_to_one_write_ce"], 1) == {}
    assert cells(BY_NAME["all_to_host_memcpy_ce"], 1) == {(0, 0): "0>h0@0"}
