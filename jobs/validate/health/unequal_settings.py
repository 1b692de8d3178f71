"""Hosts with other settings than their siblings: MTU, firmware, partitions, addresses, drivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from meshrun.jobs.validate.health.uneven_hosts import listing
from meshrun.jobs.validate.verdict import Alarm
from meshrun.runner.report.units import counted
from meshrun.runner.system.host_settings import KERNEL_LOG, UNREADABLE, Setting

# What a difference causes. The board is no setting: ports of other boards are no siblings.
EFFECTS = {
    "MTU": "larger packets are dropped or fragmented",
    "firmware": "ports may differ in rate and in faults",
    "link layer": "InfiniBand and Ethernet ports do not reach each other",
    "P_Keys": "ports without a common partition do not reach each other",
    "GID indices of RoCE v2": "one NCCL_IB_GID_INDEX cannot suit all hosts",
    "NVIDIA": "hosts with different drivers may differ in rates, and NCCL in its choices",
    "nvidia_peermem": "without it and without DMA-BUF, NCCL copies through host memory",
    "mlx5_core": "hosts with different drivers may differ in rates and in faults",
}


def unequal_settings(hosts: Mapping[str, Mapping[Setting, str]]) -> tuple[Alarm, ...]:
    """Compare the settings of hosts, each port with the port of the same name on the other hosts.

    Ports of other boards are no siblings, and neither are settings that a host does not show.

    Parameters
    ----------
    hosts : mapping
        The settings of each host, by its name.

    Returns
    -------
    tuple of Alarm
        A warning for each setting that differs; it names the hosts without the value of most.

    Examples
    --------
    >>> mtu = ("mlx5_0 port 1", "MTU")
    >>> hosts = {"a": {mtu: "9000"}, "b": {mtu: "1500"}, "c": {mtu: "9000"}}
    >>> [one.sentence.partition(";")[0] for one in unequal_settings(hosts)]
    ['host b: MTU of mlx5_0 port 1 is 1500, and 9000 on 2 other hosts']
    """
    # Settings of siblings, by host.
    groups: dict[tuple[str, str, str], dict[str, str]] = {}
    for host, settings in hosts.items():
        for (part, what), value in settings.items():
            if what in EFFECTS:
                board = settings.get((part, "board"), "")
                groups.setdefault((what, part, board), {})[host] = value

    # The same difference of several ports is one alarm.
    parts: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for (what, part, _), values in groups.items():
        if len(set(values.values())) > 1:
            parts.setdefault((what, tuple(values.items())), []).append(part)
    return tuple(
        Alarm("warning", f"{_difference(what, ports, values)}; {EFFECTS[what]}")
        for (what, values), ports in parts.items()
    )


def _difference(what: str, parts: Sequence[str], values: Sequence[tuple[str, str]]) -> str:
    """Say which hosts differ from most, or, if no value is that of most, what each has."""
    subject = f"{what} {'driver' if what == 'NVIDIA' else 'module'}" if parts == ["driver"] else what
    where = "" if parts == ["driver"] else f" of {listing(parts)}"
    usual, count = Counter(value for _, value in values).most_common(1)[0]
    hosts_of = {
        value: [host for host, own in values if own == value] for value in dict.fromkeys(v for _, v in values)
    }
    if 2 * count > len(values):
        odd = "; ".join(
            f"host{'s'[: len(some) > 1]} {listing(some)}: {subject}{where} is {value}"
            for value, some in hosts_of.items()
            if value != usual
        )
        return f"{odd}, and {usual} on {counted(count, 'other host')}"
    listed = "; ".join(f"{value} on {listing(some)}" for value, some in hosts_of.items())
    return f"{subject}{where} differs between hosts: {listed}"


def unread_logs(hosts: Mapping[str, Mapping[Setting, str]]) -> str:
    """Say on which hosts the errors of NVSwitches cannot be read; "" if on none."""
    unread = [host for host, settings in hosts.items() if settings.get(KERNEL_LOG) == UNREADABLE]
    if not unread:
        return ""
    return (
        f"errors of NVSwitches (SXid) are not checked on {listing(unread)}: the kernel log needs CAP_SYSLOG"
    )
