"""Hosts whose ports or drivers are set otherwise than those of their siblings."""

from __future__ import annotations

import pytest

from meshrun.jobs.validate.health.unequal_settings import EFFECTS, unequal_settings, unread_logs
from meshrun.runner.system.host_settings import Setting

PORTS = ("mlx5_0 port 1", "mlx5_1 port 1")


def host(**changed: str) -> dict[Setting, str]:
    usual = {
        "MTU": "9000",
        "firmware": "28.39.1002",
        "link layer": "Ethernet",
        "board": "MT_1",
        "P_Keys": "0x7fff",
    }
    usual |= {name.replace("_", " "): value for name, value in changed.items()}
    found = {(port, what): value for port in PORTS for what, value in usual.items()}
    return found | {("driver", "NVIDIA"): "580.95"}


def sentences(*hosts: dict[Setting, str]) -> list[str]:
    return [one.sentence for one in unequal_settings({f"h{n}": each for n, each in enumerate(hosts)})]


def test_equal_hosts_raise_no_alarm() -> None:
    assert sentences(*[host()] * 4) == sentences(host()) == sentences() == []


def test_the_odd_host_is_named_once_for_all_its_ports() -> None:
    (said,) = sentences(host(), host(), host(MTU="1500"), host())
    assert said == (
        "host h2: MTU of mlx5_0 port 1, mlx5_1 port 1 is 1500, and 9000 on 3 other hosts; "
        "larger packets are dropped or fragmented"
    )


def test_two_hosts_that_differ_are_both_named() -> None:
    (said,) = sentences(host(firmware="28.1"), host(firmware="28.2"))
    assert said.startswith(
        "firmware of mlx5_0 port 1, mlx5_1 port 1 differs between hosts: 28.1 on h0; 28.2 on h1"
    )


def test_ports_of_other_boards_are_no_siblings() -> None:
    assert sentences(host(), host(), host(board="MT_2", firmware="30.1")) == []


def test_a_setting_that_a_host_does_not_show_is_not_compared() -> None:
    without = {key: value for key, value in host().items() if key[1] != "MTU"}
    assert sentences(host(), host(), without) == []


def test_drivers() -> None:
    other = host() | {("driver", "NVIDIA"): "570.1"}
    (said,) = sentences(host(), host(), other)
    assert said.startswith("host h2: NVIDIA driver is 570.1, and 580.95 on 2 other hosts; ")


@pytest.mark.parametrize(
    "what", [name for name in EFFECTS if name in ("MTU", "P_Keys", "link layer", "firmware")]
)
def test_an_alarm_is_a_warning(what: str) -> None:
    (alarm,) = unequal_settings({"a": host(), "b": host(), "c": host() | {(PORTS[0], what): "other"}})
    assert alarm.status == "warning"
    assert what in alarm.sentence


def test_a_log_that_cannot_be_read_is_no_ok() -> None:
    log = ("NVSwitch", "kernel log")
    assert unread_logs({"a": host(), "b": {log: "readable"}}) == ""
    said = unread_logs({"a": {log: "unreadable"}, "b": {log: "readable"}})
    assert said.startswith("errors of NVSwitches (SXid) are not checked on a: ")
    assert sentences({log: "unreadable"}, {log: "readable"}) == []
