"""Rules for changes of counters."""

from __future__ import annotations

import pytest
from nvml import UUID, loaded
from nvml_counters import Nvml

from meshrun.jobs.validate.health.counters import KNOWN, changes
from meshrun.jobs.validate.probe.api import CounterKey
from meshrun.jobs.validate.report.model import Change
from meshrun.runner.system.counters import gpu as gpu_counters
from meshrun.runner.system.counters import network as network_counters

GPU, LINK, PORT, ETH, TCP = "GPU 3", "GPU 3, NVLink 11", "mlx5_0 port 1", "eth0", "TCP"
Values = dict[CounterKey, float | str]


def around(
    part: str, counter: str, old: float | str, new: float | str, seconds: float = 1.0
) -> tuple[Change, ...]:
    """Return the reported change of one counter from `old` to `new`."""
    clock = ("c7", "clock", "seconds")
    before: Values = {clock: 100.0, ("c7", part, counter): old}
    after: Values = {clock: 100.0 + seconds, ("c7", part, counter): new}
    return changes("pairs", before, after)


@pytest.mark.parametrize(
    ("part", "counter", "old", "new", "weight"),
    [
        (GPU, "ECC corrected", 2, 5, "note"),
        (GPU, "ECC uncorrected", 0, 1, "fault"),
        (GPU, "remapped rows, corrected", 0, 1, "note"),
        (GPU, "remapped rows, uncorrected", 0, 1, "fault"),
        (GPU, "remapped rows, failure", 0, 1, "fault"),
        (GPU, "recovery action", 0, 2, "fault"),
        (GPU, "PCIe width", 16, 8, "fault"),
        (GPU, "PCIe replays", 0, 8, "note"),
        (GPU, "PCIe replays", 0, 9, "fault"),
        (GPU, "slowed by heat, hardware", 1.0, 1.5, "fault"),
        (GPU, "slowed by heat, driver", 1.0, 1.5, "fault"),
        (GPU, "slowed by power brake", 0.0, 0.2, "fault"),
        (GPU, "slowed by power cap", 1.0, 3.0, "note"),
        (GPU, "slowed now by heat, driver", 0.0, 1.0, "fault"),
        (GPU, "slowed now by power cap", 0.0, 1.0, "note"),
        (LINK, "state", "up", "down", "fault"),
        (LINK, "replays", 0, 1, "fault"),
        (LINK, "recoveries", 4, 5, "fault"),
        (LINK, "CRC flit errors", 0, 100, "note"),
        (LINK, "CRC flit errors", 0, 101, "fault"),
        (LINK, "symbol errors", 0, 1, "fault"),
        (LINK, "effective errors", 0, 1, "note"),
        (PORT, "state", "4: ACTIVE", "1: DOWN", "fault"),
        (PORT, "rate", "400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)", "fault"),
        (PORT, "symbol_error", 7, 8, "fault"),
        (PORT, "link_downed", 0, 1, "fault"),
        (PORT, "port_rcv_remote_physical_errors", 0, 1, "note"),
        (PORT, "rp_cnp_handled", 0, 10_000, "note"),
        (ETH, "state", "up", "down", "fault"),
        (ETH, "carrier_changes", 2, 4, "fault"),
        (ETH, "rx_crc_errors", 0, 1, "fault"),
        (ETH, "rx_dropped", 0, 1, "note"),
        (TCP, "RetransSegs", 0, 1, "note"),
    ],
)
def test_weights(part: str, counter: str, old: float | str, new: float | str, weight: str) -> None:
    (found,) = around(part, counter, old, new)
    assert found == Change("pairs", "c7", part, counter, old, new, found.weight, KNOWN[counter].meaning)
    assert found.weight == weight


@pytest.mark.parametrize(
    ("part", "counter", "old", "new"),
    [
        (GPU, "temperature", 60, 63),
        (GPU, "power", 100.0, 690.0),
        (GPU, "performance state", "P0", "P2"),
        (GPU, "SM clock", 1980, 345),  # idle once more
        (GPU, "PCIe width", 8, 16),
        (GPU, "slowed by power cap", 1.0, 1.005),
        (GPU, "slowed now by heat, driver", 1.0, 0.0),
        (GPU, "remapped rows, pending", 1, 0),
        (TCP, "OutSegs", 1, 10_000),
        (PORT, "symbol_error", 7, 7),
        (PORT, "state", "4: ACTIVE", "4: ACTIVE"),
        (PORT, "something new", 0, 1),
    ],
)
def test_what_means_nothing_is_not_told(part: str, counter: str, old: float | str, new: float | str) -> None:
    assert around(part, counter, old, new) == ()


@pytest.mark.parametrize(
    ("counter", "count", "seconds", "weight"),
    [
        ("PCIe replays", 9, 600.0, "note"),
        ("PCIe replays", 80, 600.0, "note"),
        ("PCIe replays", 81, 600.0, "fault"),
        ("CRC data errors", 1000, 10.0, "note"),
        ("CRC data errors", 1001, 10.0, "fault"),
    ],
)
def test_what_is_usual_depends_on_the_time(counter: str, count: int, seconds: float, weight: str) -> None:
    (found,) = around(GPU, counter, 5, 5 + count, seconds)
    assert found.weight == weight


def test_notes_of_many_links_are_one_and_faults_are_not() -> None:
    before: Values = {("c7", "clock", "seconds"): 100.0}
    after: Values = {("c7", "clock", "seconds"): 101.0}
    for gpu in (2, 3):
        for link in range(4):
            before["c7", f"GPU {gpu}, NVLink {link}", "CRC data errors"] = 10
            after["c7", f"GPU {gpu}, NVLink {link}", "CRC data errors"] = 10 + link
            before["c7", f"GPU {gpu}, NVLink {link}", "replays"] = 0
            after["c7", f"GPU {gpu}, NVLink {link}", "replays"] = int(gpu == 3 and link < 2)
    reported = {(one.part, one.counter, one.before, one.after) for one in changes("pairs", before, after)}
    assert reported == {
        ("GPU 2, 3 NVLinks", "CRC data errors", 30, 36),
        ("GPU 3, 3 NVLinks", "CRC data errors", 30, 36),
        ("GPU 3, NVLink 0", "replays", 0, 1),
        ("GPU 3, NVLink 1", "replays", 0, 1),
    }


def test_a_counter_that_was_reset() -> None:
    (found,) = around(PORT, "symbol_error", 70, 2)
    assert (found.before, found.after, found.weight) == (70, 2, "note")
    assert "reset" in found.meaning


def test_clocks_are_told_with_what_held_them_back() -> None:
    before: Values = {
        ("c7", GPU, "slowed by heat, driver"): 0.0,
        ("c7", GPU, "SM clock"): 1980,
        ("c7", GPU, "memory clock"): 3201,
        ("c7", "GPU 4", "slowed by heat, driver"): 0.0,
        ("c7", "GPU 4", "SM clock"): 1980,
    }
    after = before | {
        ("c7", GPU, "slowed by heat, driver"): 2.0,
        ("c7", GPU, "SM clock"): 1200,
        ("c7", "GPU 4", "SM clock"): 1200,
    }
    reported = [(one.part, one.counter, one.weight) for one in changes("gpu", before, after)]
    assert reported == [(GPU, "slowed by heat, driver", "fault"), (GPU, "SM clock", "note")]


def test_retransmits_are_told_as_a_share() -> None:
    before: Values = {("c7", TCP, "RetransSegs"): 10, ("c7", TCP, "OutSegs"): 1000}
    after: Values = {("c7", TCP, "RetransSegs"): 13, ("c7", TCP, "OutSegs"): 2000}
    (found,) = changes("host pairs", before, after)
    assert found.meaning.endswith("(0.3 % of the segments sent)")


def test_what_a_hypervisor_took_is_told_as_a_share() -> None:
    before: Values = {("c7", "processors", "stolen"): 10, ("c7", "processors", "seconds"): 1000}
    after: Values = {("c7", "processors", "stolen"): 15, ("c7", "processors", "seconds"): 1020}
    (found,) = changes("gpu", before, after)
    assert found.weight == "note"
    assert found.meaning.endswith("(25 % of all processors' time)")
    little: Values = {**after, ("c7", "processors", "stolen"): 10.9}
    assert changes("gpu", before, little) == ()


def lost_gpu() -> tuple[Values, Values]:
    names = ("SM clock", "temperature", "PCIe replays", "ECC corrected", "SM clock, most")
    before: Values = {("c7", GPU, name): 1 for name in names}
    before |= {("c7", LINK, "state"): "up", ("c7", LINK, "replays"): 0}
    before |= {("c7", "GPU 4", name): 1 for name in names}
    after: Values = {key: value for key, value in before.items() if key[1] == "GPU 4"}
    return before, after


@pytest.mark.parametrize(
    "remembered", [{}, {("c7", GPU, "SM clock, most"): 1, ("c7", GPU, "PCIe replays"): 9}]
)
def test_a_gpu_that_is_lost_is_one_fault(remembered: Values) -> None:
    """With the counters that the driver still has, and with its links."""
    before, after = lost_gpu()
    (found,) = changes("node", before, after | remembered)
    assert (found.host, found.part, found.weight, found.after) == ("c7", GPU, "fault", "gone")


def test_a_gpu_of_another_host_is_not_lost_with_it() -> None:
    before, after = lost_gpu()
    there: Values = {("c8", *key[1:]): value for key, value in before.items()}
    (found,) = changes("node", before | there, after | there)
    assert found.host == "c7"


def test_nvlinks_of_another_host_are_not_those_of_the_lost_gpu() -> None:
    before, after = lost_gpu()
    there: Values = {("c8", *key[1:]): value for key, value in before.items()}
    kept: Values = {key: value for key, value in there.items() if key[1] != LINK}
    reported = [(one.host, one.part) for one in changes("node", before | there, after | kept)]
    assert reported == [("c7", GPU), ("c8", LINK)]


def test_nvlinks_that_are_lost_alone() -> None:
    before, after = lost_gpu()
    after |= {key: value for key, value in before.items() if key[1] == GPU}
    (found,) = changes("node", before, after)
    assert (found.part, found.weight) == (LINK, "fault")


def test_a_single_counter_that_is_not_read_is_no_loss() -> None:
    before, _ = lost_gpu()
    after = {key: value for key, value in before.items() if key != ("c7", GPU, "temperature")}
    assert changes("node", before, after) == ()


def test_interfaces_of_containers_come_and_go() -> None:
    before: Values = {("c7", "veth3", "rx_dropped"): 0, ("c7", "veth3", "tx_dropped"): 0}
    assert changes("node", before, {}) == ()
    assert changes("node", {}, before) == ()


def test_every_counter_that_is_read_has_a_meaning_or_is_known_to_have_none() -> None:
    tables = (gpu_counters.FIELDS, gpu_counters.TIMES, gpu_counters.REASONS, gpu_counters.CALLS)
    links = (gpu_counters.LINK_ERRORS, gpu_counters.LINK_FIELDS)
    network = (*network_counters.RDMA.values(), network_counters.STATISTICS, *network_counters.TCP.values())
    read = {name for table in (*tables, *links, *network) for name in table}
    read |= {
        "Xid errors",
        "state",
        "physical state",
        "rate",
        "carrier_changes",
        "rx_crc_errors",
        "seconds",
        "stolen",
    }
    of_load = {"temperature", "power", "power limit", "performance state", "OutSegs", "seconds"}
    fixed = {"SM clock, most", "memory clock, most"}
    assert read - set(KNOWN) == of_load | fixed
    assert set(KNOWN) - {"SXid errors"} <= read  # of hosts with NVSwitches


def test_xid_errors_of_a_rung_are_a_fault() -> None:
    key = ("c7", "GPU 3", "Xid errors")
    (found,) = changes("gpu", {key: "none"}, {key: "79"})
    assert (found.weight, found.before, found.after) == ("fault", "none", "79")
    assert "Xid catalog" in found.meaning


def test_a_reading_against_itself_tells_nothing() -> None:
    """A GPU with nonzero counters, and links of which one is down."""
    nvml = Nvml([1, 0], {94: 7, 3: 2, 74: 2.5e9}, {(0, 0): 9}, {"width": 16, ("clock", 1): 345})
    with loaded(nvml):
        read = gpu_counters.gpu_counters(UUID, 0)
    values: Values = {("c7", *key): value for key, value in read.items()}
    assert len(values) > 6
    assert changes("gpu", values, values) == ()
