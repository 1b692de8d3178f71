"""Settings of ports and drivers, from trees of files; errors of NVSwitches, from a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshrun.runner.system import host_settings as host_settings_module
from meshrun.runner.system.counters import kernel_log
from meshrun.runner.system.counters.kernel_log import nvswitch_errors
from meshrun.runner.system.host_settings import host_settings

PORT = "class/infiniband/mlx5_0/ports/1"
ADDRESS = "0000:0000:0000:0000:0000:ffff:0a00:0001"
FILES = {
    f"{PORT}/link_layer": "Ethernet",
    f"{PORT}/pkeys/0": "0xffff",
    f"{PORT}/pkeys/1": "0x8001",
    f"{PORT}/pkeys/2": "0x0000",
    f"{PORT}/gids/0": ADDRESS,
    f"{PORT}/gids/3": ADDRESS,
    f"{PORT}/gids/10": ADDRESS,
    f"{PORT}/gids/11": "0000:0000:0000:0000:0000:0000:0000:0000",
    f"{PORT}/gid_attrs/types/0": "IB/RoCE v1",
    f"{PORT}/gid_attrs/types/3": "RoCE v2",
    f"{PORT}/gid_attrs/types/10": "RoCE v2",
    f"{PORT}/gid_attrs/types/11": "RoCE v2",
    "class/infiniband/mlx5_0/fw_ver": "28.39.1002",
    "class/infiniband/mlx5_0/board_id": "MT_0000000838",
    "class/infiniband/mlx5_0/device/net/ens1np0/mtu": "9000",
    "class/net/ens1np0/device/infiniband/x": "",
    "class/net/ens1np0/mtu": "9000",
    "class/net/ens1np0/operstate": "up",
    "class/net/eth0/device/vendor": "0x1d0f",
    "class/net/eth0/mtu": "1500",
    "class/net/eth0/operstate": "up",
    "class/net/eth1/device/vendor": "0x1d0f",
    "class/net/eth1/mtu": "1500",
    "class/net/eth1/operstate": "down",
    "class/net/docker0/mtu": "1500",
    "class/net/docker0/operstate": "up",
    "module/nvidia/version": "580.95.05",
    "module/nvidia_peermem/refcnt": "0",
}


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_ports_and_drivers(tmp_path: Path) -> None:
    port = "mlx5_0 port 1"
    assert host_settings(written(tmp_path, FILES), tmp_path) == {
        (port, "link layer"): "Ethernet",
        (port, "firmware"): "28.39.1002",
        (port, "board"): "MT_0000000838",
        (port, "MTU"): "9000",
        (port, "P_Keys"): "0x0001, 0x7fff",
        (port, "GID indices of RoCE v2"): "3, 10",
        ("eth0", "MTU"): "1500",
        ("driver", "NVIDIA"): "580.95.05",
        ("driver", "nvidia_peermem"): "loaded",
    }


def test_a_log_of_nvswitches_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver" / "nvidia-nvswitch").mkdir(parents=True)
    for errors, told in (({}, "unreadable"), ({("NVSwitch", "SXid errors"): 0.0}, "readable")):
        monkeypatch.setattr(host_settings_module, "nvswitch_errors", lambda errors=errors: errors)
        assert host_settings(tmp_path, tmp_path) == {("NVSwitch", "kernel log"): told}


def test_a_host_with_nothing(tmp_path: Path) -> None:
    assert host_settings(tmp_path, tmp_path) == {}
    assert host_settings(tmp_path / "nowhere", tmp_path) == {}


def test_errors_of_nvswitches_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/kmsg gives them: a record at each read, an error if some were overwritten, at last another."""
    records = iter(
        [
            b"6,1,2,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress\n",
            b"6,2,3,-;NVRM: Xid (PCI:0000:5d:00): 79, a GPU is off the bus.\n",
            BrokenPipeError(),
            b"6,9,3,-;nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 12 LTSSM Fault Up\n",
            BlockingIOError(),
        ]
    )

    def read(file: int, size: int) -> bytes:
        record = next(records)
        if isinstance(record, Exception):
            raise record
        return record

    monkeypatch.setattr(kernel_log.os, "read", read)
    log = tmp_path / "kmsg"
    log.touch()
    assert nvswitch_errors(log) == {("NVSwitch", "SXid errors"): 2.0}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads any file")
def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch(mode=0)
    assert nvswitch_errors(log) == {}


def test_no_log(tmp_path: Path) -> None:
    assert nvswitch_errors(tmp_path / "kmsg") == {}
